"""The codec between three public API protocols and the tokens of DeepSeek-V4 and V4.1.

    tokenizer = Tokenizer.from_file("tokenizer.json")
    request = Request.parse("chat", body)          # RequestError carries the answer for bad input
    ids = request.token_ids(tokenizer)             # what the model reads
    reply = Reply(request, tokenizer)              # streamed or whole, as the client asked
    for token in generated:
        send(reply.feed(token))
    send(reply.finish("stop"))
"""

from galley.recipe._error import RequestError
from galley.recipe._native import (
    ControlSpan,
    Image,
    Options,
    Prompt,
    Reply,
    Request,
    Sampling,
    Tokenizer,
    error_body,
    image_tokens,
    render_fim,
)

__all__ = [
    "ControlSpan",
    "Image",
    "Options",
    "Prompt",
    "Reply",
    "Request",
    "RequestError",
    "Sampling",
    "Tokenizer",
    "error_body",
    "image_tokens",
    "render_fim",
]
