"""The facade: functions as tasks, over the explicit layer of queues, messages and workers.

    app = Holdfast("sqlite:work.db")

    @app.task(stall="60s", retries=5)
    def enrich(domain: str, depth: int = 1): ...

    enrich.push(domain="example.com")

A call becomes a TaskMessage with the task's name and its arguments, so tasks of any signature
share one queue. `holdfast work tasks:app` runs all of them.
"""
