"""FastStream on a broker of Kafka's protocol: the work is a message, the resource is one of the lifespan."""

import contextlib
import os
from collections.abc import AsyncIterator

import scene
from faststream import FastStream
from faststream.confluent import KafkaBroker

TOPIC = os.environ["PEER_TOPIC"]
limit = {} if scene.LIMIT is None else {"graceful_timeout": scene.LIMIT}
broker = KafkaBroker(os.environ["PEER_KAFKA"], **limit)


@contextlib.asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    async with scene.resource():
        yield


app = FastStream(broker, lifespan=lifespan)


# The session timeout only makes the group join sooner on this broker.
@broker.subscriber(TOPIC, group_id=TOPIC, auto_offset_reset="earliest", session_timeout_ms=6000)
async def handle(body: str) -> None:
    await scene.work()


@app.after_startup
async def one_message() -> None:
    await broker.publish("work", TOPIC)
