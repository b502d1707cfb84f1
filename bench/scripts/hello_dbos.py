"""One step, durable, with DBOS on SQLite."""

from dbos import DBOS


@DBOS.step()
def hello() -> str:
    return "hello"


@DBOS.workflow()
def flow() -> str:
    text: str = hello()
    return text


if __name__ == "__main__":
    DBOS(config={"name": "hello", "system_database_url": "sqlite:///hello.sqlite", "log_level": "ERROR"})
    DBOS.launch()
    print(flow())
    DBOS.destroy()
