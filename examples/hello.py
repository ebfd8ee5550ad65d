"""Submit a job and run it, in one file and without a service: python examples/hello.py"""

from headway import Headway, Worker

app = Headway()


@app.task
def add(a: int, b: int) -> int:
    return a + b


if __name__ == "__main__":
    with Worker(app):
        print(add.enqueue(2, 3).result(timeout=10))
