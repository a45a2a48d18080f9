"""aiomisc's entrypoint with one service, whose `start` goes round and whose `stop` closes."""

import scene
from aiomisc import Service, entrypoint


class Worker(Service):
    async def start(self) -> None:
        scene.say("opened")
        self.start_event.set()
        while True:
            await scene.work()

    async def stop(self, exception: Exception | None = None) -> None:
        await scene.close()


if __name__ == "__main__":
    limit = {} if scene.LIMIT is None else {"shutdown_timeout": scene.LIMIT}
    with entrypoint(Worker(), **limit) as loop:
        loop.run_forever()
