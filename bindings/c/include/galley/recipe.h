/* C interface of Galley's codec for DeepSeek-V4 and V4.1: bodies of the Chat Completions, Responses
 * and Messages protocols become token ids, generated tokens become reply bytes (streamed or whole).
 *
 * Ownership. A function that makes a handle gives it to the caller, who frees it with the matching
 * *_free; freeing NULL does nothing. Handles keep what they need of each other alive, so they may
 * be freed in any order. A galley_slice or an array that a function returns is borrowed: it lives
 * as long as the handle it was asked from (for a reply: until the next call on that reply), is not
 * NUL-terminated, and {NULL, 0} when there is nothing. Arguments are only read during the call.
 *
 * Threads. Tokenizers, requests, prompts, ids, texts and errors never change after they were made
 * and may be used from any number of threads at once. Options and replies belong to one thread at a
 * time. Freeing must not race with use.
 *
 * Errors. Functions that can fail return a galley_code. `error`, where there is one, may be NULL;
 * on failure it receives a handle that tells more, on success NULL, and it stays NULL with
 * GALLEY_OUT_OF_MEMORY. Output parameters are written on success only. A NULL handle, a NULL output
 * parameter, an unknown enum value, a flag that is neither 0 nor 1, a struct_size that is not set
 * or a NULL pointer with a size above 0 is GALLEY_INVALID_ARGUMENT; where a function cannot fail it
 * answers 0 or {NULL, 0}. Every function that returns a galley_code may return
 * GALLEY_OUT_OF_MEMORY and GALLEY_INTERNAL (a bug of the library); beyond these three, functions
 * name what they return. No C++ exception leaves the library.
 *
 * Texts are UTF-8, sizes count bytes. Flags are 0 or 1. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GALLEY_API __attribute__((visibility("default")))

/* Changes when anything below changes incompatibly. New functions, enum values, and new members at
 * the end of a struct with `struct_size` keep it. */
#define GALLEY_RECIPE_ABI_VERSION 1

/* GALLEY_RECIPE_ABI_VERSION of the library at run time; compare it with the header's. */
GALLEY_API uint32_t galley_recipe_abi_version(void);

typedef struct galley_slice {
  const char* data;
  size_t size;
} galley_slice;

/* ---- Errors ---------------------------------------------------------------------------------- */

/* Those marked (*) the library never returns by itself: they are for a server's own errors, see
 * galley_error_create and galley_reply_fail. */
typedef int32_t galley_code;
enum {
  GALLEY_OK = 0,
  GALLEY_INVALID_ARGUMENT = 1,  /* the client or the caller sent something wrong */
  GALLEY_UNAUTHENTICATED = 2,   /* (*) no key, or a wrong one */
  GALLEY_NOT_FOUND = 3,         /* no such file or token */
  GALLEY_TOO_LARGE = 4,         /* above a documented limit */
  GALLEY_OVERLOADED = 5,        /* (*) a queue is full: try again later */
  GALLEY_UNIMPLEMENTED = 6,     /* (*) known, named and not there */
  GALLEY_CANCELLED = 7,         /* (*) the client went away */
  GALLEY_DEADLINE_EXCEEDED = 8, /* (*) the request's time is over */
  GALLEY_CORRUPTION = 9,        /* (*) stored bytes do not verify */
  GALLEY_UNAVAILABLE = 10,      /* a file cannot be read; a backend is gone */
  GALLEY_INTERNAL = 11,         /* we failed, nobody else is to blame */
  GALLEY_OUT_OF_MEMORY = 12     /* nothing was changed or made; there is no galley_error */
};

typedef int32_t galley_protocol;
enum { GALLEY_CHAT = 0, GALLEY_RESPONSES = 1, GALLEY_MESSAGES = 2, GALLEY_COMPLETIONS = 3 };

typedef struct galley_error galley_error;

/* An error of the caller's own (queue full, backend gone) in the words of `protocol`. `code` is one
 * of GALLEY_INVALID_ARGUMENT to GALLEY_INTERNAL. */
GALLEY_API galley_code galley_error_create(galley_code code,
                                           const char* message,
                                           size_t message_size,
                                           galley_protocol protocol,
                                           galley_error** out);
GALLEY_API void galley_error_free(galley_error* error);
GALLEY_API galley_code galley_error_code(const galley_error* error);
/* HTTP status that goes with the code. */
GALLEY_API int32_t galley_error_http_status(const galley_error* error);
GALLEY_API galley_slice galley_error_message(const galley_error* error);
/* Offending path ("messages[3].content[0].type"), empty when there is none. */
GALLEY_API galley_slice galley_error_where(const galley_error* error);
/* JSON body to answer with, in the protocol of the request that failed (Chat Completions when no
 * request was involved). */
GALLEY_API galley_slice galley_error_body(const galley_error* error);

/* ---- Owned results --------------------------------------------------------------------------- */

typedef struct galley_ids galley_ids;
GALLEY_API const uint32_t* galley_ids_data(const galley_ids* ids);
GALLEY_API size_t galley_ids_count(const galley_ids* ids);
GALLEY_API void galley_ids_free(galley_ids* ids);

typedef struct galley_text galley_text;
GALLEY_API galley_slice galley_text_slice(const galley_text* text);
GALLEY_API void galley_text_free(galley_text* text);

/* ---- Tokenizer ------------------------------------------------------------------------------- */

typedef struct galley_tokenizer galley_tokenizer;

/* An added token whose spelling is replaced after loading. */
typedef struct galley_rename {
  uint32_t id;
  const char* name;
  size_t name_size;
} galley_rename;

/* Reads a Hugging Face tokenizer.json (byte-level BPE of the V4 family), from a file or from its
 * text. Takes a fraction of a second; share the result. Errors: GALLEY_NOT_FOUND and
 * GALLEY_UNAVAILABLE for a file that is not there or cannot be read, GALLEY_TOO_LARGE,
 * GALLEY_INVALID_ARGUMENT naming what in the file is missing or not supported. */
GALLEY_API galley_code galley_tokenizer_from_file(const char* path,
                                                  size_t path_size,
                                                  const galley_rename* renames,
                                                  size_t rename_count,
                                                  galley_tokenizer** out,
                                                  galley_error** error);
GALLEY_API galley_code galley_tokenizer_from_json(const char* json,
                                                  size_t json_size,
                                                  const galley_rename* renames,
                                                  size_t rename_count,
                                                  galley_tokenizer** out,
                                                  galley_error** error);
GALLEY_API void galley_tokenizer_free(galley_tokenizer* tokenizer);

/* Text -> ids. Without `recognise_added` no text can become a control token, whatever it spells;
 * with it (tools and tests only, never client text) spellings of added tokens become their ids.
 * Ill-formed UTF-8 counts as U+FFFD. */
GALLEY_API galley_code galley_tokenizer_encode(const galley_tokenizer* tokenizer,
                                               const char* text,
                                               size_t text_size,
                                               int32_t recognise_added,
                                               galley_ids** out,
                                               galley_error** error);
/* Ids -> text; control tokens by their spelling, ill-formed bytes as U+FFFD, unknown ids as
 * nothing. */
GALLEY_API galley_code galley_tokenizer_decode(const galley_tokenizer* tokenizer,
                                               const uint32_t* ids,
                                               size_t id_count,
                                               galley_text** out,
                                               galley_error** error);
/* Largest id + 1. */
GALLEY_API size_t galley_tokenizer_vocabulary_size(const galley_tokenizer* tokenizer);
/* Id of the added token spelled exactly so. Error: GALLEY_NOT_FOUND. */
GALLEY_API galley_code galley_tokenizer_find_added(const galley_tokenizer* tokenizer,
                                                   const char* spelling,
                                                   size_t spelling_size,
                                                   uint32_t* out,
                                                   galley_error** error);

/* ---- Options: the operator's choices, never the client's ------------------------------------- */

typedef struct galley_options galley_options;

typedef int32_t galley_option;
enum {
  GALLEY_OPTION_COMPAT = 0,           /* galley_compat; default GALLEY_COMPAT_GALLEY */
  GALLEY_OPTION_DEFAULT_THINKING = 1, /* flag, default 1: think unless the client says not to */
  GALLEY_OPTION_REJECT_MISSING_REASONING = 2,   /* flag, default 0: earlier turns may lack it */
  GALLEY_OPTION_MESSAGES_DROP_WEB_SEARCH = 3,   /* flag, default 0: web_search tools are refused */
  GALLEY_OPTION_RESPONSES_REJECT_WEB_SEARCH = 4 /* flag, default 0: they are ignored */
};

typedef int32_t galley_compat;
enum {
  GALLEY_COMPAT_GALLEY = 0,    /* replies are right */
  GALLEY_COMPAT_RECIPE_0_2 = 1 /* replies reproduce deepseek-recipe 0.2.0, defects included */
};

typedef int32_t galley_model_version;
enum { GALLEY_V4 = 0, GALLEY_V4_1 = 1 };

GALLEY_API galley_code galley_options_create(galley_options** out);
GALLEY_API void galley_options_free(galley_options* options);
GALLEY_API galley_code galley_options_set(galley_options* options,
                                          galley_option option,
                                          int32_t value);
/* Names clients may send. New options know "DeepSeek-V4-Pro" and "DeepSeek-V4.1-Flash". */
GALLEY_API galley_code galley_options_add_model(galley_options* options,
                                                const char* name,
                                                size_t name_size,
                                                galley_model_version version);
GALLEY_API galley_code galley_options_clear_models(galley_options* options);

/* ---- Requests -------------------------------------------------------------------------------- */

typedef struct galley_request galley_request;

/* Validates a request body completely. `options` NULL means the defaults. The error
 * (GALLEY_INVALID_ARGUMENT, or GALLEY_TOO_LARGE for the whole body) carries the protocol's own
 * body, its HTTP status and the offending path. Linear in `body_size`. */
GALLEY_API galley_code galley_request_parse(galley_protocol protocol,
                                            const char* body,
                                            size_t body_size,
                                            const galley_options* options,
                                            galley_request** out,
                                            galley_error** error);
GALLEY_API void galley_request_free(galley_request* request);

/* Model name as the client sent it. */
GALLEY_API galley_slice galley_request_model(const galley_request* request);
GALLEY_API galley_model_version galley_request_version(const galley_request* request);
/* Whether the client wants a stream. */
GALLEY_API int32_t galley_request_stream(const galley_request* request);
/* Whose request it is (user_id, user or metadata.user_id), empty when not sent. */
GALLEY_API galley_slice galley_request_user(const galley_request* request);
/* What was sent and has no effect, one sentence each. */
GALLEY_API size_t galley_request_note_count(const galley_request* request);
GALLEY_API galley_slice galley_request_note(const galley_request* request, size_t index);

typedef struct galley_logit_bias {
  uint32_t id;
  float bias;
} galley_logit_bias;

/* -1 in an integer member means that the client did not send it. */
typedef struct galley_sampling {
  size_t struct_size; /* set by the caller to sizeof(galley_sampling) */
  float temperature;
  float top_p;
  float presence_penalty;
  float frequency_penalty;
  int64_t max_tokens; /* as sent; see galley_request_max_tokens */
  int64_t seed;
  int32_t top_k;
  int32_t n;
  int32_t logprobs; /* flag */
  int32_t top_logprobs;
  const galley_logit_bias* logit_bias; /* borrowed from the request */
  size_t logit_bias_count;
  float min_p; /* 0: off */
} galley_sampling;

GALLEY_API galley_code galley_request_sampling(const galley_request* request, galley_sampling* out);

/* How many tokens may be generated after a prompt of `prompt_tokens` (each image counted in full)
 * in a context of `context_tokens`. Error: GALLEY_INVALID_ARGUMENT with the overflow text that
 * clients know. */
GALLEY_API galley_code galley_request_max_tokens(const galley_request* request,
                                                 int64_t prompt_tokens,
                                                 int64_t context_tokens,
                                                 int64_t* out,
                                                 galley_error** error);

typedef int32_t galley_constraint;
enum {
  GALLEY_CONSTRAINT_NONE = 0,
  GALLEY_CONSTRAINT_TOOL_CALL = 1,
  GALLEY_CONSTRAINT_TOOL_CALL_REQUIRED = 2,
  GALLEY_CONSTRAINT_JSON = 3,
  GALLEY_CONSTRAINT_REGEX = 4
};
/* What constrained decoding would enforce. `text` (may be NULL): tools or schema as compact JSON,
 * or the regular expression. */
GALLEY_API galley_constraint galley_request_constraint(const galley_request* request,
                                                       galley_slice* text);

/* Ids that end the model's turn. They are not fed to the reply. Error: GALLEY_INVALID_ARGUMENT when
 * the vocabulary lacks a control token this model version needs. */
GALLEY_API galley_code galley_request_stop_ids(const galley_request* request,
                                               const galley_tokenizer* tokenizer,
                                               galley_ids** out,
                                               galley_error** error);

/* ---- Prompts --------------------------------------------------------------------------------- */

typedef struct galley_prompt galley_prompt;

GALLEY_API galley_code galley_request_render(const galley_request* request,
                                             galley_prompt** out,
                                             galley_error** error);
/* Fill in the middle: a prompt between two pieces of text. */
GALLEY_API galley_code galley_render_fim(galley_model_version version,
                                         const char* prefix,
                                         size_t prefix_size,
                                         const char* suffix,
                                         size_t suffix_size,
                                         galley_prompt** out,
                                         galley_error** error);
GALLEY_API void galley_prompt_free(galley_prompt* prompt);
GALLEY_API galley_slice galley_prompt_text(const galley_prompt* prompt);

/* Bytes [begin, end) of the prompt's text are a control token; all other bytes are plain text. */
typedef struct galley_span {
  size_t begin;
  size_t end;
} galley_span;
/* Ascending and disjoint. `count` must not be NULL. */
GALLEY_API const galley_span* galley_prompt_controls(const galley_prompt* prompt, size_t* count);

/* Token ids of a prompt. The tokenizer keeps (bounded) what it encoded, so a conversation that
 * grows by a turn costs only that turn. An image is one placeholder id: see galley_image_tokens.
 * Error: GALLEY_INVALID_ARGUMENT when the vocabulary lacks a control token this model version
 * needs. */
GALLEY_API galley_code galley_prompt_ids(const galley_prompt* prompt,
                                         const galley_tokenizer* tokenizer,
                                         galley_ids** out,
                                         galley_error** error);

typedef int32_t galley_image_detail;
enum {
  GALLEY_DETAIL_LOW = 0,
  GALLEY_DETAIL_HIGH = 1,
  GALLEY_DETAIL_ORIGINAL = 2,
  GALLEY_DETAIL_AUTO = 3
};

/* An image as the client sent it, not loaded. */
typedef struct galley_image {
  size_t struct_size;  /* set by the caller to sizeof(galley_image) */
  int32_t is_data_url; /* flag: the image itself, else a link */
  galley_image_detail detail;
  galley_slice path;      /* where in the request, for error texts */
  galley_slice reference; /* the link or the data URL */
} galley_image;

GALLEY_API size_t galley_prompt_image_count(const galley_prompt* prompt);
/* Images in the order of their placeholders. */
GALLEY_API galley_code galley_prompt_image(const galley_prompt* prompt,
                                           size_t index,
                                           galley_image* out);
/* Prompt tokens that an image of this size costs (its placeholder stands for all of them). */
GALLEY_API galley_code galley_image_tokens(int64_t width,
                                           int64_t height,
                                           int64_t* out,
                                           galley_error** error);

/* ---- Replies --------------------------------------------------------------------------------- */

typedef struct galley_reply galley_reply;

typedef int32_t galley_stream;
enum { GALLEY_STREAM_AS_ASKED = 0, GALLEY_STREAM_ON = 1, GALLEY_STREAM_OFF = 2 };

/* {sizeof(galley_reply_options)} is a valid set of defaults. */
typedef struct galley_reply_options {
  size_t struct_size; /* set by the caller to sizeof(galley_reply_options) */
  galley_stream stream;
  int32_t usage_chunk; /* flag, chat: one extra chunk with empty `choices`, as OpenAI sends it */
  const char* id;      /* id of the reply; NULL: a random one */
  size_t id_size;
  int64_t created_s; /* Unix time; 0: now */
  uint64_t id_seed;  /* generated ids repeat with the same seed; 0: random */
} galley_reply_options;

/* One reply to one request. `options` NULL means the defaults. With a tokenizer the reply is fed
 * ids, and markup is recognised by control ids only; without one (NULL) it is fed text. */
GALLEY_API galley_code galley_reply_create(const galley_request* request,
                                           const galley_tokenizer* tokenizer,
                                           const galley_reply_options* options,
                                           galley_reply** out,
                                           galley_error** error);
GALLEY_API void galley_reply_free(galley_reply* reply);

/* The functions below set `bytes` to what is to be sent now, possibly nothing: whole server-sent
 * events of a stream; of a whole reply nothing until it ends, then its JSON body. After the reply
 * has ended (finish or fail) each of them is GALLEY_INVALID_ARGUMENT. */

/* Optional, once, before anything is fed. `fingerprint` NULL: none. */
GALLEY_API galley_code galley_reply_start(galley_reply* reply,
                                          int64_t prompt_tokens,
                                          int64_t cached_tokens,
                                          const char* fingerprint,
                                          size_t fingerprint_size,
                                          galley_slice* bytes,
                                          galley_error** error);

typedef struct galley_top_logprob {
  uint32_t id;
  float logprob;
} galley_top_logprob;

typedef struct galley_logprob {
  float logprob;                 /* of the token that was chosen */
  const galley_top_logprob* top; /* most likely ones, NULL: none */
  size_t top_count;
} galley_logprob;

/* Generated ids, any number at a time: the answer is the same however they are grouped. `logprobs`
 * is NULL or has one entry an id. */
GALLEY_API galley_code galley_reply_feed_ids(galley_reply* reply,
                                             const uint32_t* ids,
                                             size_t id_count,
                                             const galley_logprob* logprobs,
                                             galley_slice* bytes,
                                             galley_error** error);
/* Generated text; `token_count` is what it counts in usage. Not mixed with ids in one reply. */
GALLEY_API galley_code galley_reply_feed_text(galley_reply* reply,
                                              const char* text,
                                              size_t text_size,
                                              int64_t token_count,
                                              galley_slice* bytes,
                                              galley_error** error);
/* 1 after a stop string of the client matched or a tool call broke: stop generating, then finish;
 * what is still fed is ignored. */
GALLEY_API int32_t galley_reply_finished(const galley_reply* reply);

typedef int32_t galley_finish;
enum {
  GALLEY_FINISH_STOP = 0,   /* the model ended its turn */
  GALLEY_FINISH_LENGTH = 1, /* max_tokens or the end of the context */
  GALLEY_FINISH_CONTENT_FILTER = 2,
  GALLEY_FINISH_NONE = 3 /* the source ended without a reason */
};
/* Ends the reply. */
GALLEY_API galley_code galley_reply_finish(galley_reply* reply,
                                           galley_finish reason,
                                           galley_slice* bytes,
                                           galley_error** error);
/* Ends it with an error instead: the protocol's way to break a stream, or an error body. `code` is
 * one of GALLEY_INVALID_ARGUMENT to GALLEY_INTERNAL. A reply that a stop string completed stays
 * complete: then this is finish. */
GALLEY_API galley_code galley_reply_fail(galley_reply* reply,
                                         galley_code code,
                                         const char* message,
                                         size_t message_size,
                                         galley_slice* bytes,
                                         galley_error** error);
/* A frame that every client ignores, for long waits; nothing for a whole reply. */
GALLEY_API galley_code galley_reply_keep_alive(galley_reply* reply,
                                               galley_slice* bytes,
                                               galley_error** error);

#ifdef __cplusplus
} /* extern "C" */
#endif
