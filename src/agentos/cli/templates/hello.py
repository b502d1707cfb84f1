"""A first workflow. Try it:

agentos check workflows/hello.py              tell every problem, then the plan; runs nothing but this file's top
agentos run hello --param name=Ada            run it; kill it anywhere, `agentos resume` goes on
"""

from agentos import Workflow, run

flow = Workflow("hello", params={"name": "world"})


@flow.task  # a parameter of the run, by its name
def greet(name: str) -> str:
    return f"Hello, {name}!"


@flow.task
def count(name: str) -> int:
    return len(name)


@flow.task(retries=2, timeout_s=60)  # a parameter named like a task is a need, and gets its output
def report(greet: str, count: int) -> str:
    return f"{greet} The name has {count} characters."


if __name__ == "__main__":  # without this guard, finding the workflow would run it
    print(run(flow).outputs["report"])  # raises what a task raised
