/* What another engine's server does with Galley's codec from C: request body in, prompt ids to the
 * engine, generated ids in, server-sent events out.
 *
 *     cc recipe.c -lgalley_recipe -o recipe && ./recipe tokenizer.json */
#include <galley/recipe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program on an error; a server would answer with galley_error_body. */
static void check(galley_code code, galley_error* error) {
  if (code != GALLEY_OK) {
    const galley_slice body = galley_error_body(error);
    (void)fprintf(stderr, "HTTP %d: %.*s\n", (int)galley_error_http_status(error), (int)body.size,
                  body.size == 0 ? "" : body.data);
    galley_error_free(error);
    exit(1);
  }
}

static void send_bytes(galley_slice bytes) {
  if (bytes.size != 0) {
    (void)fwrite(bytes.data, 1, bytes.size, stdout);
  }
}

int main(int argc, char** argv) {
  static const char body[] =
      "{\"model\":\"my-model\",\"stream\":true,"
      "\"messages\":[{\"role\":\"user\",\"content\":\"Say hello.\"}]}";
  static const char answer[] = "A greeting.</think>Hello!"; /* stands in for an engine */
  galley_error* error = NULL;
  galley_tokenizer* tokenizer = NULL;
  galley_options* options = NULL;
  galley_request* request = NULL;
  galley_prompt* prompt = NULL;
  galley_ids* prompt_ids = NULL;
  galley_ids* generated = NULL;
  galley_reply* reply = NULL;
  galley_slice bytes;
  if (argc != 2) {
    (void)fprintf(stderr, "usage: %s tokenizer.json\n", argv[0]);
    return 2;
  }
  check(galley_tokenizer_from_file(argv[1], strlen(argv[1]), NULL, 0, &tokenizer, &error), error);
  check(galley_options_create(&options), NULL);
  check(galley_options_add_model(options, "my-model", strlen("my-model"), GALLEY_V4), NULL);

  check(galley_request_parse(GALLEY_CHAT, body, strlen(body), options, &request, &error), error);
  check(galley_request_render(request, &prompt, &error), error);
  check(galley_prompt_ids(prompt, tokenizer, &prompt_ids, &error), error);

  check(galley_tokenizer_encode(tokenizer, answer, strlen(answer), 1, &generated, &error), error);
  check(galley_reply_create(request, tokenizer, NULL, &reply, &error), error);
  check(
      galley_reply_start(reply, (int64_t)galley_ids_count(prompt_ids), 0, NULL, 0, &bytes, &error),
      error);
  send_bytes(bytes);
  for (size_t i = 0; i < galley_ids_count(generated) && !galley_reply_finished(reply); ++i) {
    check(galley_reply_feed_ids(reply, galley_ids_data(generated) + i, 1, NULL, &bytes, &error),
          error);
    send_bytes(bytes);
  }
  check(galley_reply_finish(reply, GALLEY_FINISH_STOP, &bytes, &error), error);
  send_bytes(bytes);

  galley_reply_free(reply);
  galley_ids_free(generated);
  galley_ids_free(prompt_ids);
  galley_prompt_free(prompt);
  galley_request_free(request);
  galley_options_free(options);
  galley_tokenizer_free(tokenizer);
  return 0;
}
