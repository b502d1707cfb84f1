"""The protocol of OpenAI's chat/completions, as the tests' model server speaks it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.models.received import Received
from tests.models.replies import Answer


class ChatCompletions:
    """POST …/chat/completions, plain and as server-sent events."""

    pattern = r"/chat/completions$"

    def streams(self, request: Received) -> bool:
        return bool(request.json.get("stream"))

    def plain(self, answer: Answer, request: Received) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.tool_calls:
            message["tool_calls"] = _tool_calls(answer)
        choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
        body = {**self._head(answer, request, "chat.completion"), "choices": [choice]}
        if answer.usage:
            body["usage"] = _usage(answer)
        return json.dumps(body).encode()

    def events(self, answer: Answer, request: Received) -> Iterator[bytes]:
        head = self._head(answer, request, "chat.completion.chunk")
        options = request.json.get("stream_options") or {}

        def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
            return b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"

        def choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
            return {"index": 0, "delta": delta, "finish_reason": finish_reason}

        yield event([choice({"role": "assistant", "content": ""})])
        for piece in in_pieces(answer.text, answer.pieces):
            yield event([choice({"content": piece})])
        if answer.tool_calls:
            calls = [{"index": place, **call} for place, call in enumerate(_tool_calls(answer))]
            yield event([choice({"tool_calls": calls})])
        yield event([choice({}, answer.finish_reason)])
        if answer.usage and options.get("include_usage"):
            yield event([], usage=_usage(answer))
        yield b"data: [DONE]\n\n"

    def failure(self, status: int, message: str) -> bytes:
        return json.dumps({"error": {"message": message, "type": "scripted", "code": status}}).encode()

    def _head(self, answer: Answer, request: Received, kind: str) -> dict[str, Any]:
        model = answer.model or request.json.get("model", "")
        return {"id": f"chatcmpl-{request.number}", "object": kind, "created": 1_700_000_000, "model": model}


def in_pieces(text: str, count: int) -> list[str]:
    """The text in `count` parts, the last ones shorter; none of an empty one."""
    size = max(1, -(-len(text) // max(1, count)))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _tool_calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{place}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for place, call in enumerate(answer.tool_calls)
    ]


def _usage(answer: Answer) -> dict[str, Any]:
    used: dict[str, Any] = {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.input_tokens + answer.output_tokens,
    }
    if answer.cached_tokens:
        used["prompt_tokens_details"] = {"cached_tokens": answer.cached_tokens}
    if answer.cost_usd is not None:
        used["cost"] = answer.cost_usd
    return used
