/* Goal: the C interface works from plain C17, says what went wrong, and no misuse crashes it.
 * Method: one request goes all the way from body to reply in each form; then every function gets
 * NULL handles, NULL outputs and enum values that do not exist. The codec's own behaviour is tested
 * in src/recipe; here only what crosses the boundary. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "galley/recipe.h"

static int failures = 0;

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                           \
    }                                                                       \
  } while (0)

#define TEXT(literal) (literal), (sizeof(literal) - 1)

static size_t occurrences(galley_slice text, const char* needle) {
  const size_t size = strlen(needle);
  size_t found = 0;
  for (size_t i = 0; i + size <= text.size; ++i) {
    found += memcmp(text.data + i, needle, size) == 0 ? 1 : 0;
  }
  return found;
}

static int contains(galley_slice text, const char* needle) {
  return occurrences(text, needle) != 0;
}

static int equals(galley_slice text, const char* wanted) {
  return text.size == strlen(wanted) &&
         (text.size == 0 || memcmp(text.data, wanted, text.size) == 0);
}

/* Everything a reply made, joined; large enough for the replies below. */
typedef struct {
  char data[1 << 16];
  size_t size;
} Joined;

static void append(Joined* joined, galley_slice bytes) {
  CHECK(joined->size + bytes.size <= sizeof joined->data);
  if (bytes.size != 0 && joined->size + bytes.size <= sizeof joined->data) {
    memcpy(joined->data + joined->size, bytes.data, bytes.size);
    joined->size += bytes.size;
  }
}

static galley_slice joined_slice(const Joined* joined) {
  const galley_slice slice = {joined->data, joined->size};
  return slice;
}

static const char kChatBody[] =
    "{\"model\":\"mine\",\"stream\":true,\"stop\":[\"END\"],\"seed\":7,\"max_tokens\":50,"
    "\"temperature\":0.5,\"user_id\":\"someone\","
    "\"messages\":[{\"role\":\"user\",\"content\":\"Say <\xEF\xBD\x9CUser\xEF\xBD\x9C> twice\"}]}";

static galley_tokenizer* load_tokenizer(const char* path) {
  galley_tokenizer* tokenizer = NULL;
  galley_error* error = NULL;
  CHECK(galley_tokenizer_from_file(TEXT("/nowhere/tokenizer.json"), NULL, 0, &tokenizer, &error) ==
        GALLEY_NOT_FOUND);
  CHECK(tokenizer == NULL);
  CHECK(galley_error_code(error) == GALLEY_NOT_FOUND);
  CHECK(galley_error_http_status(error) == 404);
  CHECK(galley_error_message(error).size != 0);
  galley_error_free(error);

  CHECK(galley_tokenizer_from_json(TEXT("{}"), NULL, 0, &tokenizer, &error) ==
        GALLEY_INVALID_ARGUMENT);
  galley_error_free(error);
  CHECK(galley_tokenizer_from_json(TEXT("{}"), NULL, 0, &tokenizer, NULL) ==
        GALLEY_INVALID_ARGUMENT);

  CHECK(galley_tokenizer_from_file(path, strlen(path), NULL, 0, &tokenizer, &error) == GALLEY_OK);
  CHECK(error == NULL);
  return tokenizer;
}

static galley_request* parse(const char* body, size_t size) {
  galley_options* options = NULL;
  galley_request* request = NULL;
  galley_error* error = NULL;
  CHECK(galley_options_create(&options) == GALLEY_OK);
  CHECK(galley_options_add_model(options, TEXT("mine"), GALLEY_V4_1) == GALLEY_OK);
  CHECK(galley_request_parse(GALLEY_CHAT, body, size, options, &request, &error) == GALLEY_OK);
  CHECK(error == NULL);
  galley_options_free(options);
  return request;
}

static void test_tokenizer(const galley_tokenizer* tokenizer) {
  galley_ids* ids = NULL;
  galley_text* text = NULL;
  uint32_t user = 0;
  CHECK(galley_tokenizer_find_added(tokenizer, TEXT("<\xEF\xBD\x9CUser\xEF\xBD\x9C>"), &user,
                                    NULL) == GALLEY_OK);
  CHECK(galley_tokenizer_find_added(tokenizer, TEXT("<nothing>"), &user, NULL) == GALLEY_NOT_FOUND);
  CHECK(user < galley_tokenizer_vocabulary_size(tokenizer));

  CHECK(galley_tokenizer_encode(tokenizer, TEXT("a <\xEF\xBD\x9CUser\xEF\xBD\x9C>"), 0, &ids,
                                NULL) == GALLEY_OK);
  for (size_t i = 0; i < galley_ids_count(ids); ++i) {
    CHECK(galley_ids_data(ids)[i] != user);
  }
  CHECK(galley_tokenizer_decode(tokenizer, galley_ids_data(ids), galley_ids_count(ids), &text,
                                NULL) == GALLEY_OK);
  CHECK(equals(galley_text_slice(text), "a <\xEF\xBD\x9CUser\xEF\xBD\x9C>"));
  galley_text_free(text);
  galley_ids_free(ids);

  CHECK(galley_tokenizer_encode(tokenizer, TEXT("a<\xEF\xBD\x9CUser\xEF\xBD\x9C>"), 1, &ids,
                                NULL) == GALLEY_OK);
  CHECK(galley_ids_count(ids) == 2);
  CHECK(galley_ids_data(ids)[1] == user);
  galley_ids_free(ids);

  CHECK(galley_tokenizer_encode(tokenizer, NULL, 0, 0, &ids, NULL) == GALLEY_OK);
  CHECK(galley_ids_count(ids) == 0);
  CHECK(galley_ids_data(ids) == NULL);
  galley_ids_free(ids);
}

static void test_rename(const char* path) {
  const galley_rename renames[] = {{0, TEXT("<first>")}};
  galley_tokenizer* tokenizer = NULL;
  uint32_t id = 99;
  CHECK(galley_tokenizer_from_file(path, strlen(path), renames, 1, &tokenizer, NULL) == GALLEY_OK);
  CHECK(galley_tokenizer_find_added(tokenizer, TEXT("<first>"), &id, NULL) == GALLEY_OK);
  CHECK(id == 0);
  /* The vocabulary now lacks a token every prompt begins with: said when it is needed. */
  galley_request* request = parse(TEXT(kChatBody));
  galley_ids* ids = NULL;
  CHECK(galley_request_stop_ids(request, tokenizer, &ids, NULL) == GALLEY_INVALID_ARGUMENT);
  galley_request_free(request);
  galley_tokenizer_free(tokenizer);
}

static void test_request(const galley_tokenizer* tokenizer, const galley_request* request) {
  CHECK(equals(galley_request_model(request), "mine"));
  CHECK(equals(galley_request_user(request), "someone"));
  CHECK(galley_request_version(request) == GALLEY_V4_1);
  CHECK(galley_request_stream(request) == 1);
  CHECK(galley_request_note(request, galley_request_note_count(request)).data == NULL);

  galley_sampling sampling = {.struct_size = sizeof sampling};
  CHECK(galley_request_sampling(request, &sampling) == GALLEY_OK);
  CHECK(sampling.temperature == 0.5F);
  CHECK(sampling.seed == 7);
  CHECK(sampling.max_tokens == 50);
  CHECK(sampling.top_k == -1);
  CHECK(sampling.n == 1);
  CHECK(sampling.logprobs == 0);
  CHECK(sampling.logit_bias == NULL);
  /* A caller built against a shorter struct gets no more than it has room for. */
  galley_sampling shorter = {.struct_size = offsetof(galley_sampling, top_p), .top_p = -2.0F};
  CHECK(galley_request_sampling(request, &shorter) == GALLEY_OK);
  CHECK(shorter.temperature == 0.5F);
  CHECK(shorter.top_p == -2.0F);

  int64_t max_tokens = 0;
  CHECK(galley_request_max_tokens(request, 10, 1000, &max_tokens, NULL) == GALLEY_OK);
  CHECK(max_tokens == 50);
  galley_error* error = NULL;
  CHECK(galley_request_max_tokens(request, 10, 20, &max_tokens, &error) == GALLEY_INVALID_ARGUMENT);
  CHECK(contains(galley_error_message(error), "maximum context length is 20 tokens"));
  galley_error_free(error);

  galley_slice text = {NULL, 0};
  CHECK(galley_request_constraint(request, &text) == GALLEY_CONSTRAINT_NONE);
  CHECK(galley_request_constraint(request, NULL) == GALLEY_CONSTRAINT_NONE);

  galley_ids* stop = NULL;
  CHECK(galley_request_stop_ids(request, tokenizer, &stop, NULL) == GALLEY_OK);
  CHECK(galley_ids_count(stop) == 1);
  CHECK(galley_ids_data(stop)[0] == 1);
  galley_ids_free(stop);
}

static void test_prompt(const galley_tokenizer* tokenizer, const galley_request* request) {
  galley_prompt* prompt = NULL;
  CHECK(galley_request_render(request, &prompt, NULL) == GALLEY_OK);
  const galley_slice text = galley_prompt_text(prompt);
  size_t count = 0;
  const galley_span* controls = galley_prompt_controls(prompt, &count);
  CHECK(count >= 3);
  size_t users = 0;
  for (size_t i = 0; i < count; ++i) {
    CHECK(controls[i].begin < controls[i].end);
    CHECK(controls[i].end <= text.size);
    const galley_slice spelling = {text.data + controls[i].begin,
                                   controls[i].end - controls[i].begin};
    users += equals(spelling, "<\xEF\xBD\x9CUser\xEF\xBD\x9C>") ? 1 : 0;
  }
  CHECK(users == 1); /* the user's own spelling of it is plain text */

  galley_ids* ids = NULL;
  CHECK(galley_prompt_ids(prompt, tokenizer, &ids, NULL) == GALLEY_OK);
  CHECK(galley_ids_count(ids) > count);
  CHECK(galley_ids_data(ids)[0] == 0);
  galley_text* decoded = NULL;
  CHECK(galley_tokenizer_decode(tokenizer, galley_ids_data(ids), galley_ids_count(ids), &decoded,
                                NULL) == GALLEY_OK);
  CHECK(galley_text_slice(decoded).size == text.size);
  CHECK(memcmp(galley_text_slice(decoded).data, text.data, text.size) == 0);
  galley_text_free(decoded);
  galley_ids_free(ids);
  galley_prompt_free(prompt);

  CHECK(galley_render_fim(GALLEY_V4_1, TEXT("def f("), TEXT("): pass"), &prompt, NULL) ==
        GALLEY_OK);
  CHECK(contains(galley_prompt_text(prompt), "def f("));
  galley_prompt_free(prompt);

  int64_t tokens = 0;
  CHECK(galley_image_tokens(640, 480, &tokens, NULL) == GALLEY_OK);
  CHECK(tokens == 206);
  CHECK(galley_image_tokens(0, 480, &tokens, NULL) == GALLEY_INVALID_ARGUMENT);
}

static void test_images(void) {
  static const char kBody[] =
      "{\"model\":\"mine\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\","
      "\"image_url\":{\"url\":\"https://example.org/a.png\",\"detail\":\"low\"}}]}]}";
  galley_request* request = parse(TEXT(kBody));
  galley_prompt* prompt = NULL;
  CHECK(galley_request_render(request, &prompt, NULL) == GALLEY_OK);
  CHECK(galley_prompt_image_count(prompt) == 1);
  galley_image image = {.struct_size = sizeof image};
  CHECK(galley_prompt_image(prompt, 0, &image) == GALLEY_OK);
  CHECK(image.is_data_url == 0);
  CHECK(image.detail == GALLEY_DETAIL_LOW);
  CHECK(equals(image.reference, "https://example.org/a.png"));
  CHECK(galley_prompt_image(prompt, 1, &image) == GALLEY_INVALID_ARGUMENT);
  galley_prompt_free(prompt);
  galley_request_free(request);
}

static void test_bad_requests(void) {
  galley_request* request = NULL;
  galley_error* error = NULL;
  static const char kBody[] =
      "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":7}]}";
  CHECK(galley_request_parse(GALLEY_CHAT, TEXT(kBody), NULL, &request, &error) ==
        GALLEY_INVALID_ARGUMENT);
  CHECK(request == NULL);
  CHECK(galley_error_http_status(error) == 400);
  CHECK(contains(galley_error_where(error), "messages[0].content"));
  CHECK(contains(galley_error_body(error), "\"error\""));
  galley_error_free(error);

  CHECK(galley_request_parse(GALLEY_MESSAGES, TEXT("{"), NULL, &request, &error) ==
        GALLEY_INVALID_ARGUMENT);
  CHECK(contains(galley_error_body(error), "\"type\":\"error\""));
  galley_error_free(error);

  /* Names the options no longer hold are unknown. */
  galley_options* options = NULL;
  CHECK(galley_options_create(&options) == GALLEY_OK);
  CHECK(galley_options_clear_models(options) == GALLEY_OK);
  static const char kKnown[] =
      "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
  CHECK(galley_request_parse(GALLEY_CHAT, TEXT(kKnown), options, &request, NULL) != GALLEY_OK);
  galley_options_free(options);

  CHECK(galley_error_create(GALLEY_OVERLOADED, TEXT("try later"), GALLEY_MESSAGES, &error) ==
        GALLEY_OK);
  CHECK(galley_error_http_status(error) == 429);
  CHECK(contains(galley_error_body(error), "rate_limit_error"));
  galley_error_free(error);
}

static const char kOutput[] = "why not</think>Hello there";

static galley_reply* new_reply(const galley_request* request,
                               const galley_tokenizer* tokenizer,
                               galley_stream stream) {
  const galley_reply_options options = {.struct_size = sizeof options,
                                        .stream = stream,
                                        .id = "reply-1",
                                        .id_size = 7,
                                        .created_s = 5,
                                        .id_seed = 9};
  galley_reply* reply = NULL;
  CHECK(galley_reply_create(request, tokenizer, &options, &reply, NULL) == GALLEY_OK);
  return reply;
}

/* Feeds `ids` in pieces of `step` and returns all bytes. */
static void run_reply(
    galley_reply* reply, const uint32_t* ids, size_t count, size_t step, Joined* joined) {
  galley_slice bytes;
  joined->size = 0;
  CHECK(galley_reply_start(reply, 12, 3, TEXT("fp"), &bytes, NULL) == GALLEY_OK);
  append(joined, bytes);
  for (size_t i = 0; i < count; i += step) {
    const size_t size = count - i < step ? count - i : step;
    CHECK(galley_reply_feed_ids(reply, ids + i, size, NULL, &bytes, NULL) == GALLEY_OK);
    append(joined, bytes);
  }
  CHECK(galley_reply_finish(reply, GALLEY_FINISH_STOP, &bytes, NULL) == GALLEY_OK);
  append(joined, bytes);
  galley_error* error = NULL;
  CHECK(galley_reply_finish(reply, GALLEY_FINISH_STOP, &bytes, &error) == GALLEY_INVALID_ARGUMENT);
  CHECK(contains(galley_error_message(error), "has ended"));
  galley_error_free(error);
}

static void test_replies(const galley_tokenizer* tokenizer, const galley_request* request) {
  static Joined one_by_one;
  static Joined at_once;
  galley_ids* ids = NULL;
  CHECK(galley_tokenizer_encode(tokenizer, TEXT(kOutput), 1, &ids, NULL) == GALLEY_OK);
  const uint32_t* data = galley_ids_data(ids);
  const size_t count = galley_ids_count(ids);

  galley_reply* reply = new_reply(request, tokenizer, GALLEY_STREAM_OFF);
  run_reply(reply, data, count, 1, &one_by_one);
  galley_reply_free(reply);
  reply = new_reply(request, tokenizer, GALLEY_STREAM_OFF);
  run_reply(reply, data, count, count, &at_once);
  galley_reply_free(reply);
  CHECK(one_by_one.size == at_once.size);
  CHECK(memcmp(one_by_one.data, at_once.data, at_once.size) == 0);
  CHECK(contains(joined_slice(&at_once), "\"content\":\"Hello there\""));
  CHECK(contains(joined_slice(&at_once), "\"reasoning_content\":\"why not\""));
  CHECK(contains(joined_slice(&at_once), "\"id\":\"reply-1\""));
  CHECK(contains(joined_slice(&at_once), "\"created\":5"));
  CHECK(contains(joined_slice(&at_once), "\"prompt_tokens\":12"));

  reply = new_reply(request, tokenizer, GALLEY_STREAM_AS_ASKED);
  run_reply(reply, data, count, 1, &one_by_one);
  galley_reply_free(reply);
  CHECK(one_by_one.size > 14);
  const galley_slice tail = {one_by_one.data + one_by_one.size - 14, 14};
  CHECK(equals(tail, "data: [DONE]\n\n"));
  /* Each call lends only what it made itself. */
  CHECK(occurrences(joined_slice(&one_by_one), "\"role\":\"assistant\"") == 1);
  galley_ids_free(ids);
}

static void test_text_reply(const galley_request* request) {
  static Joined joined;
  galley_slice bytes;
  galley_reply* reply = new_reply(request, NULL, GALLEY_STREAM_OFF);
  joined.size = 0;
  CHECK(galley_reply_feed_text(reply, TEXT("</think>one EN"), 4, &bytes, NULL) == GALLEY_OK);
  CHECK(bytes.size == 0);
  CHECK(galley_reply_finished(reply) == 0);
  CHECK(galley_reply_feed_text(reply, TEXT("D two"), 2, &bytes, NULL) == GALLEY_OK);
  CHECK(galley_reply_finished(reply) == 1);
  /* The stop string completed the reply; a source that breaks afterwards changes nothing. */
  CHECK(galley_reply_fail(reply, GALLEY_INTERNAL, TEXT("boom"), &bytes, NULL) == GALLEY_OK);
  append(&joined, bytes);
  CHECK(contains(joined_slice(&joined), "\"content\":\"one \""));
  galley_reply_free(reply);

  const uint32_t id = 5;
  reply = new_reply(request, NULL, GALLEY_STREAM_ON);
  CHECK(galley_reply_feed_ids(reply, &id, 1, NULL, &bytes, NULL) == GALLEY_INVALID_ARGUMENT);
  CHECK(galley_reply_feed_text(reply, TEXT("a"), -1, &bytes, NULL) == GALLEY_INVALID_ARGUMENT);
  CHECK(galley_reply_keep_alive(reply, &bytes, NULL) == GALLEY_OK);
  CHECK(bytes.size != 0 && bytes.data[0] == ':');
  CHECK(galley_reply_fail(reply, GALLEY_OVERLOADED, TEXT("engine is gone"), &bytes, NULL) ==
        GALLEY_OK);
  CHECK(contains(bytes, "engine is gone"));
  CHECK(!contains(bytes, "[DONE]"));
  CHECK(galley_reply_feed_text(reply, TEXT("a"), 1, &bytes, NULL) == GALLEY_INVALID_ARGUMENT);
  galley_reply_free(reply);
}

static void test_logprobs(const galley_tokenizer* tokenizer) {
  static const char kBody[] =
      "{\"model\":\"mine\",\"logprobs\":true,\"top_logprobs\":1,\"thinking\":{\"type\":"
      "\"disabled\"},\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
  galley_request* request = parse(TEXT(kBody));
  galley_ids* ids = NULL;
  CHECK(galley_tokenizer_encode(tokenizer, TEXT("a"), 0, &ids, NULL) == GALLEY_OK);
  const galley_top_logprob top = {galley_ids_data(ids)[0], -0.25F};
  const galley_logprob logprob = {-0.25F, &top, 1};
  galley_slice bytes;
  galley_reply* reply = new_reply(request, tokenizer, GALLEY_STREAM_OFF);
  CHECK(galley_reply_feed_ids(reply, galley_ids_data(ids), 1, &logprob, &bytes, NULL) == GALLEY_OK);
  CHECK(galley_reply_finish(reply, GALLEY_FINISH_NONE, &bytes, NULL) == GALLEY_OK);
  CHECK(contains(bytes, "-0.25"));
  CHECK(contains(bytes, "top_logprobs"));
  galley_reply_free(reply);
  galley_ids_free(ids);
  galley_request_free(request);
}

static void test_null(void) {
  galley_tokenizer_free(NULL);
  galley_options_free(NULL);
  galley_request_free(NULL);
  galley_prompt_free(NULL);
  galley_ids_free(NULL);
  galley_text_free(NULL);
  galley_reply_free(NULL);
  galley_error_free(NULL);

  CHECK(galley_error_code(NULL) == GALLEY_OK);
  CHECK(galley_error_http_status(NULL) == 0);
  CHECK(galley_error_message(NULL).data == NULL);
  CHECK(galley_error_where(NULL).data == NULL);
  CHECK(galley_error_body(NULL).data == NULL);
  CHECK(galley_ids_data(NULL) == NULL);
  CHECK(galley_ids_count(NULL) == 0);
  CHECK(galley_text_slice(NULL).size == 0);
  CHECK(galley_tokenizer_vocabulary_size(NULL) == 0);
  CHECK(galley_request_model(NULL).size == 0);
  CHECK(galley_request_user(NULL).size == 0);
  CHECK(galley_request_version(NULL) == 0);
  CHECK(galley_request_stream(NULL) == 0);
  CHECK(galley_request_note_count(NULL) == 0);
  CHECK(galley_request_note(NULL, 0).size == 0);
  CHECK(galley_request_constraint(NULL, NULL) == GALLEY_CONSTRAINT_NONE);
  CHECK(galley_prompt_text(NULL).size == 0);
  CHECK(galley_prompt_image_count(NULL) == 0);
  CHECK(galley_prompt_controls(NULL, NULL) == NULL);
  size_t count = 1;
  CHECK(galley_prompt_controls(NULL, &count) == NULL);
  CHECK(count == 0);
  CHECK(galley_reply_finished(NULL) == 0);
}

#define REFUSED(call) CHECK((call) == GALLEY_INVALID_ARGUMENT)

static void test_misuse(const galley_tokenizer* tokenizer, const galley_request* request) {
  galley_error* error = NULL;
  galley_tokenizer* new_tokenizer = NULL;
  galley_request* new_request = NULL;
  galley_options* options = NULL;
  galley_prompt* prompt = NULL;
  galley_reply* reply = NULL;
  galley_ids* ids = NULL;
  galley_text* text = NULL;
  galley_slice bytes = {NULL, 0};
  uint32_t id = 0;
  int64_t number = 0;

  REFUSED(galley_error_create(GALLEY_OK, TEXT("a"), GALLEY_CHAT, &error));
  REFUSED(galley_error_create(INT32_MIN, TEXT("a"), GALLEY_CHAT, &error));
  REFUSED(galley_error_create(GALLEY_INTERNAL, TEXT("a"), GALLEY_COMPLETIONS + 1, &error));
  REFUSED(galley_error_create(GALLEY_INTERNAL, NULL, 1, GALLEY_CHAT, &error));
  REFUSED(galley_error_create(GALLEY_INTERNAL, TEXT("a"), GALLEY_CHAT, NULL));
  CHECK(error == NULL);

  REFUSED(galley_tokenizer_from_file(NULL, 4, NULL, 0, &new_tokenizer, NULL));
  REFUSED(galley_tokenizer_from_file(TEXT("a"), NULL, 1, &new_tokenizer, NULL));
  REFUSED(galley_tokenizer_from_file(TEXT("a"), NULL, 0, NULL, NULL));
  REFUSED(galley_tokenizer_from_json(NULL, 4, NULL, 0, &new_tokenizer, NULL));
  REFUSED(galley_tokenizer_from_json(TEXT("{}"), NULL, 0, NULL, NULL));
  REFUSED(galley_tokenizer_encode(NULL, TEXT("a"), 0, &ids, NULL));
  REFUSED(galley_tokenizer_encode(tokenizer, NULL, 1, 0, &ids, NULL));
  REFUSED(galley_tokenizer_encode(tokenizer, TEXT("a"), 2, &ids, NULL));
  REFUSED(galley_tokenizer_encode(tokenizer, TEXT("a"), 0, NULL, NULL));
  REFUSED(galley_tokenizer_decode(NULL, &id, 1, &text, NULL));
  REFUSED(galley_tokenizer_decode(tokenizer, NULL, 1, &text, NULL));
  REFUSED(galley_tokenizer_decode(tokenizer, &id, 1, NULL, NULL));
  REFUSED(galley_tokenizer_find_added(NULL, TEXT("a"), &id, NULL));
  REFUSED(galley_tokenizer_find_added(tokenizer, NULL, 1, &id, NULL));
  REFUSED(galley_tokenizer_find_added(tokenizer, TEXT("a"), NULL, NULL));

  REFUSED(galley_options_create(NULL));
  CHECK(galley_options_create(&options) == GALLEY_OK);
  REFUSED(galley_options_set(NULL, GALLEY_OPTION_COMPAT, 0));
  REFUSED(galley_options_set(options, GALLEY_OPTION_COMPAT, 2));
  REFUSED(galley_options_set(options, GALLEY_OPTION_DEFAULT_THINKING, 2));
  REFUSED(galley_options_set(options, 5, 0));
  REFUSED(galley_options_set(options, -1, 0));
  REFUSED(galley_options_add_model(NULL, TEXT("a"), GALLEY_V4));
  REFUSED(galley_options_add_model(options, NULL, 1, GALLEY_V4));
  REFUSED(galley_options_add_model(options, TEXT("a"), 2));
  REFUSED(galley_options_clear_models(NULL));
  for (galley_option option = GALLEY_OPTION_COMPAT;
       option <= GALLEY_OPTION_RESPONSES_REJECT_WEB_SEARCH; ++option) {
    CHECK(galley_options_set(options, option, 1) == GALLEY_OK);
  }
  galley_options_free(options);

  REFUSED(galley_request_parse(3, TEXT("{}"), NULL, &new_request, NULL));
  REFUSED(galley_request_parse(-1, TEXT("{}"), NULL, &new_request, &error));
  CHECK(galley_error_body(error).size != 0);
  galley_error_free(error);
  REFUSED(galley_request_parse(GALLEY_CHAT, NULL, 2, NULL, &new_request, NULL));
  REFUSED(galley_request_parse(GALLEY_CHAT, TEXT("{}"), NULL, NULL, NULL));

  galley_sampling unsized = {.struct_size = 0};
  REFUSED(galley_request_sampling(request, &unsized));
  REFUSED(galley_request_sampling(request, NULL));
  REFUSED(galley_request_sampling(NULL, NULL));
  REFUSED(galley_request_max_tokens(NULL, 1, 2, &number, NULL));
  REFUSED(galley_request_max_tokens(request, 1, 1000, NULL, NULL));
  REFUSED(galley_request_stop_ids(NULL, tokenizer, &ids, NULL));
  REFUSED(galley_request_stop_ids(request, NULL, &ids, NULL));
  REFUSED(galley_request_stop_ids(request, tokenizer, NULL, NULL));
  REFUSED(galley_request_render(NULL, &prompt, NULL));
  REFUSED(galley_request_render(request, NULL, NULL));
  REFUSED(galley_render_fim(2, TEXT("a"), TEXT("b"), &prompt, NULL));
  REFUSED(galley_render_fim(GALLEY_V4, NULL, 1, TEXT("b"), &prompt, NULL));
  REFUSED(galley_render_fim(GALLEY_V4, TEXT("a"), NULL, 1, &prompt, NULL));
  REFUSED(galley_render_fim(GALLEY_V4, TEXT("a"), TEXT("b"), NULL, NULL));
  REFUSED(galley_prompt_ids(NULL, tokenizer, &ids, NULL));
  REFUSED(galley_prompt_image(NULL, 0, NULL));
  REFUSED(galley_image_tokens(10, 10, NULL, NULL));

  const galley_reply_options no_size = {.struct_size = 0};
  const galley_reply_options bad_stream = {.struct_size = sizeof bad_stream, .stream = 3};
  const galley_reply_options bad_id = {.struct_size = sizeof bad_id, .id_size = 3};
  REFUSED(galley_reply_create(NULL, tokenizer, NULL, &reply, NULL));
  REFUSED(galley_reply_create(request, tokenizer, NULL, NULL, NULL));
  REFUSED(galley_reply_create(request, tokenizer, &no_size, &reply, NULL));
  REFUSED(galley_reply_create(request, tokenizer, &bad_stream, &reply, NULL));
  REFUSED(galley_reply_create(request, tokenizer, &bad_id, &reply, NULL));
  REFUSED(galley_reply_start(NULL, 1, 0, NULL, 0, &bytes, NULL));
  REFUSED(galley_reply_feed_ids(NULL, &id, 1, NULL, &bytes, NULL));
  REFUSED(galley_reply_feed_text(NULL, TEXT("a"), 1, &bytes, NULL));
  REFUSED(galley_reply_finish(NULL, GALLEY_FINISH_STOP, &bytes, NULL));
  REFUSED(galley_reply_fail(NULL, GALLEY_INTERNAL, TEXT("a"), &bytes, NULL));
  REFUSED(galley_reply_keep_alive(NULL, &bytes, NULL));

  CHECK(galley_reply_create(request, tokenizer, NULL, &reply, NULL) == GALLEY_OK);
  REFUSED(galley_reply_start(reply, 1, 0, NULL, 0, NULL, NULL));
  REFUSED(galley_reply_start(reply, 1, 0, NULL, 3, &bytes, NULL));
  REFUSED(galley_reply_feed_ids(reply, NULL, 1, NULL, &bytes, NULL));
  REFUSED(galley_reply_feed_text(reply, TEXT("a"), 1, &bytes, NULL));
  REFUSED(galley_reply_finish(reply, 4, &bytes, NULL));
  REFUSED(galley_reply_finish(reply, -1, &bytes, NULL));
  REFUSED(galley_reply_fail(reply, GALLEY_OK, TEXT("a"), &bytes, NULL));
  REFUSED(galley_reply_fail(reply, GALLEY_OUT_OF_MEMORY, TEXT("a"), &bytes, NULL));
  /* None of it hurt the reply. */
  CHECK(galley_reply_feed_ids(reply, NULL, 0, NULL, &bytes, NULL) == GALLEY_OK);
  REFUSED(galley_reply_start(reply, 1, 0, NULL, 0, &bytes, NULL));
  CHECK(galley_reply_finish(reply, GALLEY_FINISH_LENGTH, &bytes, NULL) == GALLEY_OK);
  CHECK(contains(bytes, "\"length\""));
  galley_reply_free(reply);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    (void)fprintf(stderr, "usage: %s TOKENIZER.json\n", argv[0]);
    return 2;
  }
  CHECK(galley_recipe_abi_version() == GALLEY_RECIPE_ABI_VERSION);
  galley_tokenizer* tokenizer = load_tokenizer(argv[1]);
  galley_request* request = parse(TEXT(kChatBody));
  test_tokenizer(tokenizer);
  test_rename(argv[1]);
  test_request(tokenizer, request);
  test_prompt(tokenizer, request);
  test_images();
  test_bad_requests();
  test_replies(tokenizer, request);
  test_text_reply(request);
  test_logprobs(tokenizer);
  test_null();
  test_misuse(tokenizer, request);

  /* A reply outlives the handles it was made from. */
  galley_reply* reply = new_reply(request, tokenizer, GALLEY_STREAM_OFF);
  galley_request_free(request);
  galley_tokenizer_free(tokenizer);
  const uint32_t id = 3;
  galley_slice bytes;
  CHECK(galley_reply_feed_ids(reply, &id, 1, NULL, &bytes, NULL) == GALLEY_OK);
  CHECK(galley_reply_finish(reply, GALLEY_FINISH_STOP, &bytes, NULL) == GALLEY_OK);
  galley_reply_free(reply);
  (void)printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
