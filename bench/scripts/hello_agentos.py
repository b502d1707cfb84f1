"""The README's first run: one task, durable."""

from agentos import Workflow, run

flow = Workflow("hello")


@flow.task
def hello() -> str:
    return "hello"


if __name__ == "__main__":
    print(run(flow).outputs["hello"])
