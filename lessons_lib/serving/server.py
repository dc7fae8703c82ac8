"""A server with OpenAI's completions and chat completions in front of the engine (lesson 05), for learning.

    lessons serve --model smollm2-135m --max-num-seqs 16

Two threads share the work. The event loop (uvicorn and FastAPI) reads requests, checks them and writes answers. The
engine's thread runs one step after the other. The way of a request:

    HTTP body -> CompletionRequest, ChatRequest   the fields; a wrong one is a 4xx with a sentence
              -> Sequence                         prompt ids, acceptance rule, stopping criteria (`Worker.submit`)
              -> Worker.inbox                     the queue to the engine's thread
              -> scheduler, engine                continuous batching, chunked prefill, prefix caching
              -> Answer                           the queue back: pieces of text, then the end
              -> HTTP                             one JSON object, or server-sent events

Whatever ends a connection calls `Answer.close`. It cancels the sequence, whose blocks are free before the next step.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from threading import Thread

from jinja2 import TemplateError

from lessons_lib.caches.sizes import blocks_for
from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.decoding.text import TextStream, encode
from lessons_lib.models.hub import LanguageModel
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.engine import Engine
from lessons_lib.serving.scheduler import Scheduler

try:
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, Response, StreamingResponse

    from lessons_lib.serving.openai_api import APIError, ChatRequest, CompletionRequest, Form, problem
    from lessons_lib.serving.prometheus import Metrics
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f'The server needs {error.name}: pip install ".[serve]"') from error

BLOCK_SIZE = 16  # tokens
TOKENS_PER_SEQUENCE = 1024  # for each of max_num_seqs, the pool has room for so many by default
UNFINISHED = Status.WAITING, Status.RUNNING
log = logging.getLogger(__name__)


class Answer:
    """The way back of one request: the engine's thread puts pieces of text, the event loop iterates over them."""

    def __init__(self, worker: Worker):
        self.worker, self.sequence = worker, None
        self.loop, self.pieces = asyncio.get_running_loop(), asyncio.Queue()

    def put(self, piece: str | None) -> None:
        """Add a piece of text, or None for the end. Called in the engine's thread."""
        self.loop.call_soon_threadsafe(self.pieces.put_nowait, piece)

    async def __aiter__(self) -> AsyncIterator[str]:
        """The pieces of text as they come. APIError if the request ended unfinished."""
        while (piece := await self.pieces.get()) is not None:
            yield piece
        if self.sequence.error:
            raise APIError(500, self.sequence.error)
        if self.sequence.status is not Status.FINISHED:
            raise APIError(503, "The server was stopped before this answer was complete.")

    def close(self) -> None:
        """Give up the request's place, and cancel it if it has not ended. Called in the event loop."""
        self.worker.unanswered.discard(self)
        if self.sequence.status in UNFINISHED:
            self.worker.engine.cancel(self.sequence)


class Worker(Thread):
    """The engine's thread: takes requests from the inbox, runs steps, ends answers.

    model: the name by which requests ask for it. max_model_len: maximum number of tokens of a prompt and its answer
    together. max_queue: maximum number of requests that wait while max_num_seqs run.
    """

    def __init__(self, engine: Engine, model: str, max_model_len: int, max_queue: int):
        super().__init__(name="engine", daemon=True)
        self.engine, self.scheduler, self.model = engine, engine.scheduler, model
        self.max_model_len, self.max_queue = max_model_len, max_queue
        self.metrics = Metrics(engine.scheduler, model)
        self.inbox: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()  # None: stop
        self.stopping = False
        self.unanswered: set[Answer] = set()  # only the event loop uses it
        self.answers: list[Answer] = []  # only the engine's thread uses it: those taken from the inbox

    # Called in the event loop.

    def submit(self, request: CompletionRequest | ChatRequest) -> Answer:
        """Check a request and hand it to the engine. APIError if it cannot be answered."""
        if self.stopping:
            raise APIError(503, "The server is being stopped and takes no more requests.")
        if request.model not in (None, self.model):
            raise APIError(404, f"There is no model {request.model!r} here; this server has {self.model!r}.")
        slots, queue = self.scheduler.max_num_seqs, self.max_queue
        if len(self.unanswered) >= slots + queue:
            raise APIError(429, f"The queue is full: {slots} requests run and {queue} wait; try again later.")
        answer = Answer(self)
        try:
            answer.sequence = self._sequence(request, answer)
        except (ValueError, TypeError, TemplateError) as error:
            raise APIError(400, str(error)) from error
        self.unanswered.add(answer)
        self.inbox.put(answer)
        return answer

    def _sequence(self, request: CompletionRequest | ChatRequest, answer: Answer) -> Sequence:
        arrival, target = self.engine.now(), self.engine.target
        ids = encode(target, request.read_prompt())
        new = request.limit(self.max_model_len - len(ids))
        if len(ids) + new > self.max_model_len:
            raise ValueError(
                f"The prompt has {len(ids)} tokens and up to {new} new ones follow, but both must fit in "
                f"{self.max_model_len}; shorten the prompt or lower max_tokens."
            )
        sequence = self.engine.request(
            ids,
            arrival=arrival,
            max_new_tokens=new,
            stop=request.stop,
            acceptance=request.acceptance(),
            generator=request.generator(),
            on_tokens=TextStream(target.tokenizer, answer.put, request.stop),
        )
        if request.ignore_eos:
            sequence.stopping.eos = frozenset()
        return sequence

    def stop(self) -> None:
        """End all requests, then the thread."""
        self.stopping = True
        self.inbox.put(None)

    # The engine's thread.

    def run(self) -> None:
        """Run steps as long as there are requests, else wait for one, until `stop`."""
        with self.scheduler.exclusive():
            while self._take():
                try:
                    self._step()
                except Exception as error:  # for example no memory left: its requests fail, and the others go on
                    log.exception("a step failed")
                    for sequence in self.scheduler.running or [answer.sequence for answer in self.answers]:
                        sequence.error = f"The engine failed: {error!r}"
                        self.engine.cancel(sequence)  # it leaves before the next step
                self._end_answers()
            self.scheduler.stop(self.engine.now())
        self._end_answers()

    def _take(self) -> bool:
        """Queue the requests in the inbox; wait for one if none is left. Returns False after `stop`."""
        while not self.answers or not self.inbox.empty():
            answer = self.inbox.get()
            if answer is None:
                return False
            self.answers.append(answer)
            with suppress(ValueError):  # it was cancelled already
                self.scheduler.add(answer.sequence)
        return True

    def _step(self) -> None:
        """Run one step of the scheduler's choice. The engine streams its text (`on_tokens`)."""
        plan, committed = self.scheduler.schedule(self.engine.now()), []
        if plan:
            committed = self.engine.run(plan)
            self.scheduler.commit(plan, committed, self.engine.now())
        self.metrics.record(plan, committed)

    def _end_answers(self) -> None:
        """End the answers whose sequences have ended. Their blocks are free by now."""
        ended = [answer for answer in self.answers if answer.sequence.status not in UNFINISHED]
        self.answers = [answer for answer in self.answers if answer.sequence.status in UNFINISHED]
        for answer in ended:
            self.metrics.record_end(answer.sequence)
            answer.put(None)


def create_app(worker: Worker) -> FastAPI:
    """The web application. It starts the worker, and stops it at its own end."""

    @asynccontextmanager
    async def lifespan(_):
        worker.start()
        yield
        worker.stop()
        await asyncio.to_thread(worker.join)

    app = FastAPI(title="lessons serve", lifespan=lifespan)

    @app.post("/v1/completions")
    async def completions(request: CompletionRequest, http: Request) -> Response:
        return await respond(worker.submit(request), request, Form(worker.model, chat=False), http)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: ChatRequest, http: Request) -> Response:
        return await respond(worker.submit(request), request, Form(worker.model, chat=True), http)

    @app.get("/v1/models")
    async def models() -> dict:
        model = {"id": worker.model, "object": "model", "created": 0, "owned_by": "lessons_lib"}
        return {"object": "list", "data": [model | {"max_model_len": worker.max_model_len}]}

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=503 if worker.stopping or not worker.is_alive() else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(worker.metrics.text(), media_type=worker.metrics.media_type)

    @app.exception_handler(APIError)
    async def refuse(_, error: APIError) -> Response:
        return JSONResponse(error.body, error.status)

    @app.exception_handler(RequestValidationError)
    async def refuse_fields(_, error: RequestValidationError) -> Response:
        return await refuse(_, APIError(400, problem(error.errors())))

    return app


async def respond(answer: Answer, request: CompletionRequest | ChatRequest, form: Form, http: Request) -> Response:
    """The response to a request: a stream, or one object after the last token."""
    if request.stream:
        return EventStream(answer, events(answer, form, request.stream_options.include_usage))
    watch = asyncio.create_task(close_when_gone(answer, http))
    try:
        text = "".join([piece async for piece in answer])
        return JSONResponse(form.whole(text, answer.sequence))
    finally:
        watch.cancel()
        answer.close()


async def close_when_gone(answer: Answer, http: Request) -> None:
    """Close the answer when the client drops its connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
    answer.close()


class EventStream(StreamingResponse):
    """Sends an answer as server-sent events. Its end, also that of a dropped connection, closes the answer."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, parts: AsyncIterator[str]):
        super().__init__(parts)
        self.answer = answer

    async def __call__(self, scope, receive, send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.answer.close()


async def events(answer: Answer, form: Form, include_usage: bool) -> AsyncIterator[str]:
    """The events of a streamed answer. An error after the first one is an event, too."""
    event = lambda content: f"data: {json.dumps(content)}\n\n"  # noqa: E731
    try:
        if first := form.first():
            yield event(first)
        async for piece in answer:
            yield event(form.piece(piece))
        yield event(form.last(answer.sequence))
        if include_usage:
            yield event(form.counts(answer.sequence))
        yield "data: [DONE]\n\n"
    except APIError as error:
        yield event(error.body)


class Uvicorn(uvicorn.Server):
    """uvicorn, which at Ctrl-C waits for the running requests: end them first."""

    def __init__(self, worker: Worker):
        # idle connections live longer here than in clients (5 s in httpx), or one might be closed while it is reused
        super().__init__(uvicorn.Config(create_app(worker), log_level="warning", timeout_keep_alive=60))
        self.worker = worker

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the requests, then the server."""
        self.worker.stop()
        await super().shutdown(sockets)


def make_worker(
    model: LanguageModel,
    max_num_seqs: int = 16,
    max_model_len: int | None = None,
    max_num_batched_tokens: int = 512,
    num_blocks: int | None = None,
    max_queue: int = 1024,
) -> Worker:
    """An engine for the model, in a thread that has not started yet.

    max_model_len: by default the model's context, as far as the blocks have room. num_blocks: of BLOCK_SIZE tokens, by
    default room for max_num_seqs sequences of TOKENS_PER_SEQUENCE tokens. Raises ValueError for settings that cannot
    work, and for a model that the engine does not run.
    """
    target = model.target("decoder")
    if num_blocks is None:
        usual = max_num_seqs * min(TOKENS_PER_SEQUENCE, target.context)
        num_blocks = blocks_for(max(usual, max_model_len or 1), BLOCK_SIZE)
    most = min(target.context, num_blocks * BLOCK_SIZE)
    max_model_len = most if max_model_len is None else max_model_len
    if not 1 < max_model_len <= most or max_queue < 0:
        raise ValueError(
            f"max_model_len is at least 2 and at most {most} here (context {target.context}, {num_blocks} blocks of "
            f"{BLOCK_SIZE} tokens), and max_queue at least 0; {max_model_len} and {max_queue} were given."
        )
    scheduler = Scheduler(
        BlockPool(num_blocks, BLOCK_SIZE),
        max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_chunked_prefill=True,
    )
    return Worker(Engine(target, scheduler), model.name, max_model_len, max_queue)


def listen(host: str = "127.0.0.1", port: int = 8000) -> socket.socket:
    """A socket that listens there; port 0: any that is free. ValueError if the address cannot be used."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ValueError(f"Cannot listen on {host}, port {port} ({error}); choose another --port or --host.") from error


def serve(worker: Worker, listening: socket.socket) -> None:
    """Serve until Ctrl-C, which ends the running requests."""
    host, port = listening.getsockname()[:2]
    pool, cache = worker.scheduler.pool, worker.engine.memory.nbytes
    print(f"{worker.model} at http://{f'[{host}]' if ':' in host else host}:{port}/v1 (Ctrl-C ends it)")
    print(
        f"at most {worker.scheduler.max_num_seqs} running requests, {worker.max_model_len} tokens each; "
        f"{pool.num_blocks} KV cache blocks of {pool.block_size} tokens, {cache / 1e6:,.0f} MB",
        flush=True,
    )
    with suppress(KeyboardInterrupt):  # uvicorn raises it again after its end
        Uvicorn(worker).run(sockets=[listening])
    print("All requests have ended.")
