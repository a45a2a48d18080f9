"""Celery's worker with one process of its default pool: the work is a task, the resource one of that process."""

import scene
from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown, worker_ready

# The broker that Celery has in memory: its own process gives itself the task.
app = Celery("peers", broker="memory://")
if scene.LIMIT is not None:
    app.conf.worker_soft_shutdown_timeout = scene.LIMIT


@app.task
def work() -> None:
    scene.blocking_work()


@worker_process_init.connect
def opened(**_: object) -> None:
    scene.say("opened")


@worker_process_shutdown.connect
def close(**_: object) -> None:
    scene.blocking_close()


@worker_ready.connect
def one_task(**_: object) -> None:
    work.delay()
