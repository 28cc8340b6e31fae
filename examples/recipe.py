"""What another engine's server does with Galley's codec: request body in, prompt ids to the engine,
generated ids in, server-sent events out.

    pip install .
    python examples/recipe.py tests/data/small_tokenizer.json
"""

import sys

from galley.recipe import Options, Reply, Request, RequestError, Tokenizer

BODY = b"""{
  "model": "my-model", "stream": true,
  "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
  "tools": [{"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
}"""


def generate(tokenizer, prompt_ids, stop_ids, max_tokens):
    """Stands in for an engine: yields the ids a model could have answered with."""
    yield from tokenizer.encode(
        "They ask for the weather.</think>Let me look.\n\n"
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        added=True,
    )


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/recipe.py tests/data/small_tokenizer.json")
    tokenizer = Tokenizer.from_file(sys.argv[1])
    options = Options(models={"my-model": "v4"})
    out = sys.stdout.buffer

    try:
        request = Request.parse("chat", BODY, options)
        prompt_ids = request.token_ids(tokenizer)
        max_tokens = request.max_tokens(len(prompt_ids))
    except RequestError as error:
        print(f"HTTP {error.status} at {error.where}: {error.body.decode()}")
        return

    reply = Reply(request, tokenizer)
    out.write(reply.start(prompt_tokens=len(prompt_ids)))
    for token in generate(tokenizer, prompt_ids, request.stop_ids(tokenizer), max_tokens):
        out.write(reply.feed(token))
        if reply.finished:  # one of the client's stop strings
            break
    out.write(reply.finish("stop"))


main()
