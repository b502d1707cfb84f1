"""The protocols that agents speak with their models beside chat/completions, as the tests' model server speaks them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import structs

from tests.models.chat import in_pieces
from tests.models.received import Received
from tests.models.replies import Answer, ToolCall


class Messages:
    """Anthropic's: POST …/messages."""

    pattern = r"/messages$"

    def streams(self, request: Received) -> bool:
        return bool(request.json.get("stream"))

    def plain(self, answer: Answer, request: Received) -> bytes:
        content = [{"type": "text", "text": answer.text}] if answer.text else []
        content += [self._tool_use(call, request, place) for place, call in enumerate(answer.tool_calls)]
        return _json({**self._head(answer, request), "content": content, "stop_reason": self._stop(answer)})

    def events(self, answer: Answer, request: Received) -> Iterator[bytes]:
        head = {**self._head(answer, request), "content": [], "stop_reason": None}
        yield _event({"type": "message_start", "message": head})
        place = 0
        if answer.text:
            texts = [{"type": "text_delta", "text": piece} for piece in in_pieces(answer.text, answer.pieces)]
            yield from self._block({"type": "text", "text": ""}, texts, place)
            place += 1
        for call in answer.tool_calls:
            begun = {**self._tool_use(call, request, place), "input": {}}
            inputs = [{"type": "input_json_delta", "partial_json": json.dumps(call.arguments)}]
            yield from self._block(begun, inputs, place)
            place += 1
        usage = {"output_tokens": answer.output_tokens}
        delta = {"stop_reason": self._stop(answer), "stop_sequence": None}
        yield _event({"type": "message_delta", "delta": delta, "usage": usage})
        yield _event({"type": "message_stop"})

    def failure(self, status: int, message: str) -> bytes:
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, "api_error")
        return _json({"type": "error", "error": {"type": kind, "message": message}})

    def _head(self, answer: Answer, request: Received) -> dict[str, Any]:
        usage = {
            "input_tokens": answer.input_tokens,
            "output_tokens": answer.output_tokens,
            "cache_read_input_tokens": answer.cached_tokens,
        }
        model = answer.model or request.json.get("model", "")
        return {
            "id": f"msg_{request.number}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "stop_sequence": None,
            "usage": usage,
        }

    def _tool_use(self, call: ToolCall, request: Received, place: int) -> dict[str, Any]:
        return {"type": "tool_use", "id": _call_id(request, place), "name": call.name, "input": call.arguments}

    def _block(self, begun: Mapping[str, Any], deltas: list[dict[str, Any]], place: int) -> Iterator[bytes]:
        yield _event({"type": "content_block_start", "index": place, "content_block": begun})
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": place, "delta": delta})
        yield _event({"type": "content_block_stop", "index": place})

    def _stop(self, answer: Answer) -> str:
        return "tool_use" if answer.tool_calls else "end_turn"


class Responses:
    """OpenAI's newer one: POST …/responses."""

    pattern = r"/responses$"

    def streams(self, request: Received) -> bool:
        return bool(request.json.get("stream"))

    def plain(self, answer: Answer, request: Received) -> bytes:
        return _json(self._whole(answer, request))

    def events(self, answer: Answer, request: Received) -> Iterator[bytes]:
        whole = self._whole(answer, request)
        begun = {**whole, "status": "in_progress", "output": [], "usage": None}
        yield _event({"type": "response.created", "response": begun})
        for index, item in enumerate(whole["output"]):
            place = {"output_index": index}
            yield _event({"type": "response.output_item.added", **place, "item": {**item, "content": []}})
            if item["type"] == "message":
                for piece in in_pieces(answer.text, answer.pieces):
                    within = {**place, "item_id": item["id"], "content_index": 0}
                    yield _event({"type": "response.output_text.delta", **within, "delta": piece})
            yield _event({"type": "response.output_item.done", **place, "item": item})
        yield _event({"type": "response.completed", "response": whole})

    def failure(self, status: int, message: str) -> bytes:
        return _json({"error": {"message": message, "type": "scripted", "code": str(status)}})

    def _whole(self, answer: Answer, request: Received) -> dict[str, Any]:
        output: list[dict[str, Any]] = []
        if answer.text:
            content = [{"type": "output_text", "text": answer.text, "annotations": []}]
            head = {"type": "message", "id": f"msg_{request.number}", "status": "completed"}
            output.append({**head, "role": "assistant", "content": content})
        for place, call in enumerate(answer.tool_calls):
            id = _call_id(request, place)
            head = {"type": "function_call", "id": f"f{id}", "call_id": id, "status": "completed"}
            below = {"namespace": call.namespace} if call.namespace else {}
            output.append({**head, **below, "name": call.name, "arguments": json.dumps(call.arguments)})
        usage = {
            "input_tokens": answer.input_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens},
            "output_tokens": answer.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.input_tokens + answer.output_tokens,
        }
        model = answer.model or request.json.get("model", "")
        about = {"id": f"resp_{request.number}", "object": "response", "created_at": 1_700_000_000, "model": model}
        return {**about, "status": "completed", "output": output, "usage": usage}


class GenerateContent:
    """Google's: POST …/models/MODEL:generateContent, and :streamGenerateContent."""

    pattern = r":(streamG|g)enerateContent$"

    def streams(self, request: Received) -> bool:
        return ":streamGenerateContent" in request.path

    def plain(self, answer: Answer, request: Received) -> bytes:
        parts: list[dict[str, Any]] = [{"text": answer.text}] if answer.text else []
        parts += [{"functionCall": {"name": call.name, "args": call.arguments}} for call in answer.tool_calls]
        return self._candidate(parts, answer, "STOP")

    def events(self, answer: Answer, request: Received) -> Iterator[bytes]:
        pieces = in_pieces(answer.text, answer.pieces)
        for piece in pieces[:-1]:
            yield _data(self._candidate([{"text": piece}], answer, None))
        yield _data(self.plain(structs.replace(answer, text=pieces[-1] if pieces else ""), request))

    def failure(self, status: int, message: str) -> bytes:
        kind = {401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}.get(status, "INTERNAL")
        return _json({"error": {"code": status, "message": message, "status": kind}})

    def _candidate(self, parts: list[dict[str, Any]], answer: Answer, finish: str | None) -> bytes:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish is None:
            return _json({"candidates": [candidate]})
        usage = {
            "promptTokenCount": answer.input_tokens,
            "candidatesTokenCount": answer.output_tokens,
            "cachedContentTokenCount": answer.cached_tokens,
            "totalTokenCount": answer.input_tokens + answer.output_tokens,
        }
        return _json({"candidates": [{**candidate, "finishReason": finish}], "usageMetadata": usage})


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _data(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _event(value: Mapping[str, Any]) -> bytes:
    return f"event: {value['type']}\n".encode() + _data(_json(value))


def _call_id(request: Received, place: int) -> str:
    # Agents tell the calls of a conversation apart by it.
    return f"call_{request.number}_{place}"
