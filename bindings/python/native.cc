#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/random.h"
#include "base/real_clock.h"
#include "base/result.h"
#include "bindings/common/session.h"
#include "bindings/common/vocabulary.h"
#include "recipe/control.h"
#include "recipe/image_size.h"
#include "recipe/limits.h"
#include "recipe/names.h"
#include "recipe/prompt.h"
#include "recipe/reply.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

// The native half of galley.recipe. It converts values and errors; every decision is the codec's.
// Long work (loading, parsing, rendering, encoding a prompt) runs without the interpreter lock;
// feeding a reply keeps it, because handing it over would cost more than the work.

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace galley::bindings {
namespace {

nb::bytes to_bytes(std::string_view text) {
  return nb::bytes(text.data(), text.size());
}

// Text of the codec is UTF-8, but what a client sent may reach it unchecked.
nb::str to_str(std::string_view text) {
  PyObject* const result =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (result == nullptr) {
    throw nb::python_error();
  }
  return nb::steal<nb::str>(result);
}

[[noreturn]] void raise(PyObject* type, std::string_view message) {
  PyErr_SetObject(type, to_str(message).ptr());
  throw nb::python_error();
}

// ---- Names of enum values -----------------------------------------------------------------------

constexpr std::array<std::string_view, 11> kCodes = {
    "invalid_argument", "unauthenticated", "not_found", "too_large",
    "overloaded",       "unimplemented",   "cancelled", "deadline_exceeded",
    "corruption",       "unavailable",     "internal",
};
static_assert(static_cast<std::size_t>(Code::kInternal) + 1 == kCodes.size());
// The value that Python calls `name`. Error: ValueError.
template <class Enum>
Enum named(std::string_view name, const char* what) {
  if constexpr (std::is_same_v<Enum, Code>) {
    const auto it = std::ranges::find(kCodes, name);
    if (it != kCodes.end()) {
      return static_cast<Code>(it - kCodes.begin());
    }
  } else if (const auto value = recipe::named<Enum>(name)) {
    return *value;
  }
  raise(PyExc_ValueError, "no such " + std::string(what) + ": " + std::string(name));
}

// ---- Errors -------------------------------------------------------------------------------------

[[noreturn]] void raise_request_error(const Error& error,
                                      recipe::Protocol protocol,
                                      recipe::Compat compat) {
  const nb::object type = nb::module_::import_("galley.recipe._error").attr("RequestError");
  const nb::object value = type(to_str(error.what), kCodes[static_cast<std::size_t>(error.code)],
                                recipe::http_status(error.code), to_str(error.where),
                                to_bytes(recipe::error_body(protocol, compat, error)));
  PyErr_SetObject(type.ptr(), value.ptr());
  throw nb::python_error();
}

// Errors that are the calling program's: a file, a vocabulary, a misuse.
[[noreturn]] void raise_plain(const Error& error) {
  raise(error.code == Code::kNotFound ? PyExc_FileNotFoundError : PyExc_ValueError, error.what);
}

template <class T>
T value_or_raise(Result<T> result) {
  if (!result) {
    raise_plain(result.error());
  }
  if constexpr (!std::is_void_v<T>) {
    return std::move(result).value();
  }
}

// ---- What the classes hold ----------------------------------------------------------------------

struct PyTokenizer {
  std::shared_ptr<const Vocabulary> vocabulary;
};

struct PyRequest {
  std::shared_ptr<const recipe::Request> request;  // shared with the replies to it
};

struct PyPrompt {
  recipe::Prompt prompt;
  recipe::ModelVersion version;
};

struct PyReply {
  std::unique_ptr<Session> session;
  std::vector<TokenId> ids;  // kept between calls for its memory
};

// Text or bytes, borrowed for as long as `object` lives.
std::string_view bytes_of(nb::handle object) {
  if (PyBytes_Check(object.ptr())) {
    return {PyBytes_AS_STRING(object.ptr()),
            static_cast<std::size_t>(PyBytes_GET_SIZE(object.ptr()))};
  }
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (data == nullptr) {
    throw nb::python_error();
  }
  return {data, static_cast<std::size_t>(size)};
}

nb::list to_list(const std::vector<TokenId>& ids) {
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(ids.size()));
  if (list == nullptr) {
    throw nb::python_error();
  }
  nb::list result = nb::steal<nb::list>(list);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    PyObject* const id = PyLong_FromUnsignedLong(ids[i]);
    if (id == nullptr) {
      throw nb::python_error();
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), id);
  }
  return result;
}

TokenId id_of(PyObject* object) {
  const unsigned long value = PyLong_AsUnsignedLong(object);
  if (PyErr_Occurred() != nullptr) {
    throw nb::python_error();
  }
  if (value > 0xffff'ffffUL) {
    raise(PyExc_OverflowError, "a token id has 32 bits");
  }
  return static_cast<TokenId>(value);
}

void append_ids(nb::handle sequence, std::vector<TokenId>& ids) {
  const nb::object fast =
      nb::steal(PySequence_Fast(sequence.ptr(), "token ids are not a sequence"));
  if (!fast.is_valid()) {
    throw nb::python_error();
  }
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    ids.push_back(id_of(PySequence_Fast_GET_ITEM(fast.ptr(), i)));
  }
}

// ---- Tokenizer ----------------------------------------------------------------------------------

using Renames = std::map<TokenId, std::string>;

recipe::TokenizerOptions tokenizer_options(const std::optional<Renames>& rename) {
  recipe::TokenizerOptions options;
  if (rename) {
    options.rename.assign(rename->begin(), rename->end());
  }
  return options;
}

template <class Load>
PyTokenizer load(const Load& load_tokenizer) {
  Result<std::shared_ptr<const Vocabulary>> vocabulary = [&] {
    const nb::gil_scoped_release unlocked;
    return [&]() -> Result<std::shared_ptr<const Vocabulary>> {
      GALLEY_TRY(std::shared_ptr<const recipe::Tokenizer> tokenizer, load_tokenizer());
      return std::make_shared<const Vocabulary>(std::move(tokenizer));
    }();
  }();
  return {value_or_raise(std::move(vocabulary))};
}

nb::list encode(const PyTokenizer& self, std::string_view text, bool added) {
  std::vector<TokenId> ids;
  {
    const nb::gil_scoped_release unlocked;
    if (added) {
      self.vocabulary->tokenizer()->encode_with_added(text, ids);
    } else {
      self.vocabulary->tokenizer()->encode(text, ids);
    }
  }
  return to_list(ids);
}

void bind_tokenizer(nb::module_& m) {
  nb::class_<PyTokenizer>(m, "Tokenizer",
                          R"(The vocabulary of a model, read from a Hugging Face `tokenizer.json`.

Immutable and safe to share between threads. It keeps (bounded) what it encoded for prompts, so a
conversation that grows by a turn costs only that turn.)")
      .def_static(
          "from_file",
          [](const std::string& path, const std::optional<Renames>& rename) {
            return load(
                [&] { return recipe::Tokenizer::from_file(path, tokenizer_options(rename)); });
          },
          "path"_a, "rename"_a = nb::none(),
          R"(Reads a file. `rename` replaces the spelling of added tokens, by id.

Raises FileNotFoundError, or ValueError naming what in the file is missing or not supported.)")
      .def_static(
          "from_json",
          [](std::string_view text, const std::optional<Renames>& rename) {
            return load(
                [&] { return recipe::Tokenizer::from_json(text, tokenizer_options(rename)); });
          },
          "text"_a, "rename"_a = nb::none(), "The same, from the text of the file.")
      .def("encode", &encode, "text"_a, nb::kw_only(), "added"_a = false,
           nb::sig("def encode(self, text: str, *, added: bool = False) -> list[int]"),
           R"(Token ids of `text`.

Text never becomes a control token, whatever it spells; with `added` (tools and tests only, never
client text) spellings of added tokens do.)")
      .def(
          "decode",
          [](const PyTokenizer& self, nb::sequence ids) {
            std::vector<TokenId> all;
            append_ids(ids, all);
            return to_str(self.vocabulary->tokenizer()->decode(all));
          },
          "ids"_a, nb::sig("def decode(self, ids: collections.abc.Sequence[int]) -> str"),
          "Text of `ids`: control tokens by their spelling, ill-formed bytes as U+FFFD.")
      .def(
          "find_added",
          [](const PyTokenizer& self, std::string_view spelling) {
            return self.vocabulary->tokenizer()->find_added(spelling);
          },
          "spelling"_a, "Id of the added token spelled exactly so, or None.")
      .def_prop_ro(
          "vocabulary_size",
          [](const PyTokenizer& self) { return self.vocabulary->tokenizer()->vocabulary_size(); },
          "Largest id + 1.");
}

// ---- Options, requests, prompts -----------------------------------------------------------------

using Models = std::map<std::string, std::string>;

void bind_options(nb::module_& m) {
  nb::class_<recipe::CodecOptions>(
      m, "Options", R"(How the codec is set up: the operator's choices, never the client's.

`models` maps the names clients may send to "v4" or "v4.1" (default: "DeepSeek-V4-Pro" and
"DeepSeek-V4.1-Flash"). `compat="recipe-0.2"` reproduces deepseek-recipe 0.2.0, defects included.)")
      .def(
          "__init__",
          [](recipe::CodecOptions* self, const std::optional<Models>& models,
             std::string_view compat, bool default_thinking, bool reject_missing_reasoning,
             bool messages_drop_web_search, bool responses_reject_web_search) {
            recipe::CodecOptions options;
            options.compat = named<recipe::Compat>(compat, "compat");
            options.default_thinking = default_thinking;
            options.reject_missing_reasoning = reject_missing_reasoning;
            options.messages_drop_web_search = messages_drop_web_search;
            options.responses_reject_web_search = responses_reject_web_search;
            if (models) {
              options.models.clear();
              for (const auto& [name, version] : *models) {
                options.models.emplace(name, named<recipe::ModelVersion>(version, "model version"));
              }
            }
            new (self) recipe::CodecOptions(std::move(options));
          },
          nb::kw_only(), "models"_a = nb::none(), "compat"_a = "galley",
          "default_thinking"_a = true, "reject_missing_reasoning"_a = false,
          "messages_drop_web_search"_a = false, "responses_reject_web_search"_a = false);
}

void bind_sampling(nb::module_& m) {
  nb::class_<recipe::Sampling>(m, "Sampling", "Generation parameters of a request.")
      .def_ro("temperature", &recipe::Sampling::temperature)
      .def_ro("top_p", &recipe::Sampling::top_p)
      .def_ro("max_tokens", &recipe::Sampling::max_tokens,
              "As sent; `Request.max_tokens` says how many may be generated.")
      .def_ro("seed", &recipe::Sampling::seed)
      .def_ro("logprobs", &recipe::Sampling::logprobs)
      .def_ro("top_logprobs", &recipe::Sampling::top_logprobs)
      .def_ro("n", &recipe::Sampling::n)
      .def_ro("presence_penalty", &recipe::Sampling::presence_penalty)
      .def_ro("frequency_penalty", &recipe::Sampling::frequency_penalty)
      .def_ro("top_k", &recipe::Sampling::top_k)
      .def_ro("min_p", &recipe::Sampling::min_p)
      .def_ro("logit_bias", &recipe::Sampling::logit_bias, "Pairs of token id and bias.");
}

nb::list encode_prompt(const PyPrompt& prompt, const PyTokenizer& tokenizer) {
  Result<std::vector<TokenId>> ids = [&] {
    const nb::gil_scoped_release unlocked;
    return tokenizer.vocabulary->encode(prompt.prompt, prompt.version);
  }();
  return to_list(value_or_raise(std::move(ids)));
}

void bind_prompt(nb::module_& m) {
  nb::class_<recipe::ControlSpan>(
      m, "ControlSpan", "Bytes [begin, end) of a prompt's UTF-8 text that are a control token.")
      .def_ro("begin", &recipe::ControlSpan::begin)
      .def_ro("end", &recipe::ControlSpan::end);

  nb::class_<recipe::Image>(m, "Image", "An image as the client sent it, not loaded.")
      .def_prop_ro(
          "is_data_url",
          [](const recipe::Image& self) { return self.kind == recipe::Image::Kind::kDataUrl; })
      .def_prop_ro("detail", [](const recipe::Image& self) { return recipe::name_of(self.detail); })
      .def_prop_ro(
          "path", [](const recipe::Image& self) { return to_str(self.path); },
          "Where in the request, for error texts.")
      .def_prop_ro(
          "reference", [](const recipe::Image& self) { return to_str(self.reference); },
          "The link or the data URL.");

  nb::class_<PyPrompt>(m, "Prompt", "What the model reads, as text.")
      .def_prop_ro("text", [](const PyPrompt& self) { return to_str(self.prompt.text); })
      .def_prop_ro(
          "controls", [](const PyPrompt& self) { return self.prompt.controls; },
          "The control tokens, ascending; all other text is plain, whatever it spells.")
      .def_prop_ro(
          "images", [](const PyPrompt& self) { return self.prompt.images; },
          "Images in the order of their placeholders.")
      .def("token_ids", &encode_prompt, "tokenizer"_a,
           nb::sig("def token_ids(self, tokenizer: Tokenizer) -> list[int]"),
           R"(Token ids; an image is one placeholder id, see `image_tokens`.

Raises ValueError when the vocabulary lacks a control token this model version needs.)");

  m.def(
      "render_fim",
      [](std::string_view prefix, std::string_view suffix, std::string_view version) {
        return PyPrompt{recipe::render_fim(prefix, suffix),
                        named<recipe::ModelVersion>(version, "model version")};
      },
      "prefix"_a, "suffix"_a, "version"_a = "v4.1", "Prompt that asks for what stands between.");
  m.def(
      "image_tokens",
      [](std::int64_t width, std::int64_t height) {
        return value_or_raise(recipe::image_grid(width, height)).tokens;
      },
      "width"_a, "height"_a,
      "Prompt tokens that an image of this size costs; its placeholder stands for all of them.");
}

PyRequest parse(std::string_view protocol,
                nb::handle body,
                const std::optional<recipe::CodecOptions>& options) {
  const auto kind = named<recipe::Protocol>(protocol, "protocol");
  const std::string_view text = bytes_of(body);
  const recipe::CodecOptions& chosen = options ? *options : recipe::CodecOptions{};
  Result<recipe::Request> request = [&] {
    const nb::gil_scoped_release unlocked;
    return recipe::parse_request(kind, text, chosen);
  }();
  if (!request) {
    raise_request_error(request.error(), kind, chosen.compat);
  }
  return {std::make_shared<const recipe::Request>(std::move(request).value())};
}

PyPrompt render(const PyRequest& self) {
  const nb::gil_scoped_release unlocked;
  return {recipe::render(*self.request), self.request->version};
}

std::int64_t max_tokens(const PyRequest& self,
                        std::int64_t prompt_tokens,
                        std::int64_t context_tokens) {
  const Result<std::int64_t> result =
      recipe::effective_max_tokens(*self.request, prompt_tokens, context_tokens);
  if (!result) {
    raise_request_error(result.error(), self.request->protocol, self.request->compat);
  }
  return *result;
}

std::optional<std::pair<std::string, std::string>> constraint(const PyRequest& self) {
  const recipe::Constraint& value = self.request->constraint;
  if (value.kind == recipe::Constraint::Kind::kNone) {
    return std::nullopt;
  }
  return std::pair{std::string(recipe::name_of(value.kind)), value.text};
}

void bind_request(nb::module_& m) {
  nb::class_<PyRequest>(m, "Request", "A request, completely validated.")
      .def_static("parse", &parse, "protocol"_a, "body"_a, "options"_a = nb::none(),
                  nb::sig("def parse(protocol: typing.Literal['chat', 'responses', 'messages', "
                          "'completions'], "
                          "body: bytes | str, options: Options | None = None) -> Request"),
                  "Reads a request body. Raises RequestError, which holds the whole answer.")
      .def("render", &render, "The prompt as text.")
      .def(
          "token_ids",
          [](const PyRequest& self, const PyTokenizer& tokenizer) {
            return encode_prompt(render(self), tokenizer);
          },
          "tokenizer"_a, nb::sig("def token_ids(self, tokenizer: Tokenizer) -> list[int]"),
          "The prompt as token ids: `render().token_ids(tokenizer)`.")
      .def("max_tokens", &max_tokens, "prompt_tokens"_a,
           "context_tokens"_a = recipe::kContextTokensDefault,
           R"(How many tokens may be generated after a prompt of that length (images in full).

Raises RequestError when the request does not fit the context.)")
      .def(
          "stop_ids",
          [](const PyRequest& self, const PyTokenizer& tokenizer) {
            return to_list(value_or_raise(tokenizer.vocabulary->stop_ids(*self.request)));
          },
          "tokenizer"_a, nb::sig("def stop_ids(self, tokenizer: Tokenizer) -> list[int]"),
          "Ids that end the model's turn; they are not fed to the reply.")
      .def_prop_ro("protocol",
                   [](const PyRequest& self) { return recipe::name_of(self.request->protocol); })
      .def_prop_ro(
          "model", [](const PyRequest& self) { return to_str(self.request->model); },
          "Name of the model as the client sent it.")
      .def_prop_ro(
          "version", [](const PyRequest& self) { return recipe::name_of(self.request->version); },
          "\"v4\" or \"v4.1\".")
      .def_prop_ro(
          "stream", [](const PyRequest& self) { return self.request->stream; },
          "Whether the client wants a stream.")
      .def_prop_ro(
          "sampling", [](const PyRequest& self) { return self.request->sampling; },
          "Generation parameters.")
      .def_prop_ro("constraint", &constraint,
                   R"(What constrained decoding would enforce: (kind, text), or None.

Kinds are "tool_call", "tool_call_required", "json" and "regex"; the text is compact JSON or the
regular expression.)")
      .def_prop_ro(
          "user", [](const PyRequest& self) { return to_str(self.request->user); },
          "Whose request it is, empty when not sent.")
      .def_prop_ro(
          "notes", [](const PyRequest& self) { return self.request->notes; },
          "What was sent and has no effect, one sentence each.");
}

// ---- Replies ------------------------------------------------------------------------------------

nb::bytes take(Session& session) {
  const nb::bytes result = to_bytes(session.bytes());
  session.bytes().clear();
  return result;
}

using PyLogprobs = std::vector<std::pair<float, std::vector<std::pair<TokenId, float>>>>;

nb::bytes feed(PyReply& self,
               nb::handle chunk,
               std::optional<std::int64_t> count,
               const std::optional<PyLogprobs>& logprobs) {
  Session& session = *self.session;
  if (PyUnicode_Check(chunk.ptr()) || PyBytes_Check(chunk.ptr())) {
    value_or_raise(session.feed_text(bytes_of(chunk), count.value_or(1)));
    return take(session);
  }
  if (count) {
    raise(PyExc_ValueError, "ids count themselves; `count` is for text");
  }
  self.ids.clear();
  if (PyLong_Check(chunk.ptr())) {
    self.ids.push_back(id_of(chunk.ptr()));
  } else {
    append_ids(chunk, self.ids);
  }
  std::vector<IdLogprob> converted;
  if (logprobs) {
    for (const auto& [logprob, top] : *logprobs) {
      converted.push_back({.logprob = logprob, .top = top});
    }
  }
  value_or_raise(session.feed_tokens(self.ids, converted));
  return take(session);
}

void bind_reply(nb::module_& m) {
  static const RealClock clock;
  nb::class_<PyReply>(m, "Reply", R"(One reply: generated tokens in, bytes for the client out.

Streamed, each call returns the server-sent events to send now (possibly none). Whole, everything but
the end returns nothing and `finish` returns the JSON body. With a tokenizer the reply is fed ids, and
markup is recognised by control ids only; without one it is fed text. `stream` None: as the client
asked. `id`, `created` and `seed` (of generated ids) make a reply repeatable. `usage_chunk` (chat):
one extra chunk with empty `choices`, as OpenAI sends it.)")
      .def(
          "__init__",
          [](PyReply* self, const PyRequest& request, const PyTokenizer* tokenizer,
             std::optional<bool> stream, const std::optional<std::string>& id,
             std::optional<std::int64_t> created, std::optional<std::uint64_t> seed,
             bool usage_chunk) {
            SessionOptions options{
                .stream = stream,
                .id = id.value_or(""),
                .created_s = created,
                .id_seed = {},
                .usage_chunk = usage_chunk,
            };
            if (seed) {
              options.id_seed = Seed(*seed);
            }
            auto session = std::make_unique<Session>(
                request.request,
                tokenizer == nullptr ? nullptr : tokenizer->vocabulary->tokenizer(),
                std::move(options), clock);
            new (self) PyReply{std::move(session), {}};
          },
          "request"_a, "tokenizer"_a.none() = nb::none(), nb::kw_only(), "stream"_a = nb::none(),
          "id"_a = nb::none(), "created"_a = nb::none(), "seed"_a = nb::none(),
          "usage_chunk"_a = false)
      .def(
          "start",
          [](PyReply& self, std::int64_t prompt_tokens, std::int64_t cached_tokens,
             const std::optional<std::string>& fingerprint) {
            value_or_raise(self.session->start({.prompt_tokens = prompt_tokens,
                                                .cached_tokens = cached_tokens,
                                                .fingerprint = fingerprint}));
            return take(*self.session);
          },
          "prompt_tokens"_a, "cached_tokens"_a = 0, "fingerprint"_a = nb::none(),
          "Optional, once, before anything is fed: what usage says about the prompt.")
      .def(
          "feed", &feed, "chunk"_a, "count"_a = nb::none(), "logprobs"_a = nb::none(),
          nb::sig("def feed(self, chunk: int | collections.abc.Sequence[int] | str | bytes, "
                  "count: int | None = None, logprobs: collections.abc.Sequence[tuple[float, "
                  "collections.abc.Sequence[tuple[int, float]]]] | None = None) -> bytes"),
          R"(A generated id, several, or a piece of text; the answer does not depend on the grouping.

`count` is how many tokens a piece of text counts for (default 1). `logprobs` has one entry an id:
(logprob, [(id, logprob), ...]).)")
      .def(
          "finish",
          [](PyReply& self, std::optional<std::string_view> reason) {
            std::optional<recipe::SourceFinish> why;
            if (reason) {
              why = named<recipe::SourceFinish>(*reason, "finish reason");
            }
            value_or_raise(self.session->finish(why));
            return take(*self.session);
          },
          "reason"_a = "stop",
          nb::sig("def finish(self, reason: typing.Literal['stop', 'length', 'content_filter'] | "
                  "None = 'stop') -> bytes"),
          "Ends the reply. None: the source ended without a reason.")
      .def(
          "fail",
          [](PyReply& self, const std::string& message, std::string_view code) {
            value_or_raise(self.session->fail(Error{named<Code>(code, "error code"), message, {}}));
            return take(*self.session);
          },
          "message"_a, "code"_a = "internal",
          R"(Ends the reply with an error: the protocol's way to break a stream, or an error body.

A reply that a stop string completed stays complete.)")
      .def(
          "keep_alive",
          [](PyReply& self) {
            value_or_raise(self.session->keep_alive());
            return take(*self.session);
          },
          "A frame every client ignores, for long waits; nothing for a whole reply.")
      .def_prop_ro(
          "finished", [](const PyReply& self) { return self.session->finished(); },
          "A stop string of the client matched: stop generating, then call `finish`.");

  m.def(
      "error_body",
      [](std::string_view protocol, std::string_view message, std::string_view code) {
        const Code kind = named<Code>(code, "error code");
        const auto words = named<recipe::Protocol>(protocol, "protocol");
        return std::pair{recipe::http_status(kind),
                         to_bytes(recipe::error_body(words, recipe::Compat::kGalley,
                                                     Error{kind, std::string(message), {}}))};
      },
      "protocol"_a, "message"_a, "code"_a = "internal",
      "HTTP status and JSON body of a server's own error in the words of a protocol.");
}

}  // namespace
}  // namespace galley::bindings

NB_MODULE(_native, m) {
  galley::bindings::bind_tokenizer(m);
  galley::bindings::bind_options(m);
  galley::bindings::bind_sampling(m);
  galley::bindings::bind_prompt(m);
  galley::bindings::bind_request(m);
  galley::bindings::bind_reply(m);
}
