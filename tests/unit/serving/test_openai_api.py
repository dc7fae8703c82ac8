"""OpenAI's fields: defaults, values that change nothing, and each wrong one refused in a sentence."""

import re

import httpx
import pytest
from support.server import CHAT, alone, post, serving


def test_limits_by_default_are_16_tokens_and_for_chats_the_rest_of_the_context():
    with serving(max_model_len=64) as worker:
        text = post(worker, {"prompt": "a"}).json()
        chat = post(worker, {"messages": CHAT}, "chat/completions").json()
        model = httpx.get(f"{worker.url}/v1/models", trust_env=False).json()["data"][0]
    assert text["usage"]["completion_tokens"] == 16
    assert chat["usage"]["total_tokens"] == 64
    assert (model["id"], model["max_model_len"]) == ("tiny", 64)


BAD = {
    "too long": ({"prompt": "a" * 3000}, 400, "has 3000 tokens and up to 16 new ones .* fit in 2048; shorten"),
    "unknown field": ({"prompt": "a", "temprature": 1}, 400, "The field temprature is unknown; leave it out"),
    "unknown option": ({"prompt": "a", "stream_options": {"x": 1}}, 400, "The field stream_options.x is unknown"),
    "named like a tag": ({"prompt": "a", "list": 1}, 400, "The field list is unknown"),
    "no stream": ({"prompt": "a", "stream_options": {}}, 400, "stream_options needs stream=true; set it, or leave"),
    "no prompt": ({}, 400, "The field prompt is missing"),
    "empty prompt": ({"prompt": ""}, 400, "the prompt is empty"),
    "strange ids": ({"prompt": [1, 999]}, 400, "token id 999 is not in this model's vocabulary of 259"),
    "several prompts": ({"prompt": ["a", "b"]}, 400, "A request has one prompt, not 2; send a request for each"),
    "wrong prompt": ({"prompt": 5}, 400, "The field prompt is wrong"),
    "logprobs": ({"prompt": "a", "logprobs": 0}, 400, "does not offer logprobs=0; leave logprobs out"),
    "hot": ({"prompt": "a", "temperature": 3}, 400, "The field temperature is wrong: .* less than or equal to 2"),
    "text for a number": ({"prompt": "a", "max_tokens": "5"}, 400, "The field max_tokens is wrong: .* integer"),
    "empty stop": ({"prompt": "a", "stop": ""}, 400, "an empty stop text"),
    "another model": ({"prompt": "a", "model": "gpt"}, 404, "no model 'gpt' here; this server has 'tiny'"),
}


@pytest.mark.parametrize("body, status, message", BAD.values(), ids=BAD)
def test_a_wrong_request_is_refused_in_a_sentence_and_keeps_no_place(worker, body, status, message):
    answer = post(worker, body)
    error = answer.json()["error"]
    assert answer.status_code == error["code"] == status and re.search(message, error["message"])
    assert error["type"] == "invalid_request_error" and not worker.unanswered


BAD_CHATS = {
    "no messages": ({"messages": []}, "The field messages is wrong: .* at least 1"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]},
        "content.0.type is wrong",
    ),
    "a neutral field": ({"messages": [CHAT[0] | {"echo": False}]}, "The field messages.0.echo is unknown"),
    "two limits": (
        {"messages": CHAT, "max_tokens": 5, "max_completion_tokens": 50},
        "max_tokens and max_completion_tokens mean the same; leave one of them out",
    ),
    "tools": ({"messages": CHAT, "tools": [{"type": "function"}]}, "does not offer tools="),
}


@pytest.mark.parametrize("body, message", BAD_CHATS.values(), ids=BAD_CHATS)
def test_a_wrong_chat_is_refused_in_a_sentence(worker, body, message):
    answer = post(worker, body, "chat/completions")
    assert answer.status_code == 400 and re.search(message, answer.json()["error"]["message"])


def test_fields_that_change_nothing_are_taken(worker):
    same = {"n": 1, "best_of": 1, "echo": False, "logprobs": None, "presence_penalty": 0.0, "user": "me", "stop": None}
    answer = post(worker, {"prompt": "ab", "max_tokens": 5, "temperature": 0, "top_k": -1, **same})
    assert answer.json()["choices"][0]["text"] == alone("ab", max_new_tokens=5).text
