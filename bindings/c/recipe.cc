#include "galley/recipe.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "bindings/c/boundary.h"
#include "bindings/common/vocabulary.h"
#include "recipe/image_size.h"
#include "recipe/prompt.h"
#include "recipe/reply.h"
#include "recipe/request.h"

namespace recipe = galley::recipe;
using galley::Code;
using galley::Error;
using galley::Result;
using namespace galley::bindings;  // the boundary's helpers, in this file only

namespace {

using SharedTokenizer = std::shared_ptr<const recipe::Tokenizer>;

Result<recipe::TokenizerOptions> renames_of(const galley_rename* renames, std::size_t count) {
  GALLEY_TRY(const std::span<const galley_rename> all, array(renames, count, "renames"));
  recipe::TokenizerOptions options;
  for (const galley_rename& rename : all) {
    GALLEY_TRY(const std::string_view name, view(rename.name, rename.name_size, "name"));
    options.rename.emplace_back(rename.id, name);
  }
  return options;
}

galley_tokenizer* make_tokenizer(SharedTokenizer tokenizer) {
  return new galley_tokenizer{std::make_shared<const Vocabulary>(std::move(tokenizer))};
}

galley_prompt* make_prompt(recipe::Prompt prompt, recipe::ModelVersion version) {
  std::vector<galley_span> controls;
  controls.reserve(prompt.controls.size());
  for (const recipe::ControlSpan& span : prompt.controls) {
    controls.push_back({.begin = span.begin, .end = span.end});
  }
  return new galley_prompt{std::move(prompt), version, std::move(controls)};
}

}  // namespace

std::uint32_t galley_recipe_abi_version(void) {
  return GALLEY_RECIPE_ABI_VERSION;
}

// ---- Errors -------------------------------------------------------------------------------------

galley_code galley_error_create(galley_code code,
                                const char* message,
                                std::size_t message_size,
                                galley_protocol protocol,
                                galley_error** out) {
  return guarded(nullptr, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(const std::string_view text, view(message, message_size, "message"));
    GALLEY_TRY(const Code kind, code_from(code));
    GALLEY_TRY(const recipe::Protocol words,
               enum_of(protocol, recipe::Protocol::kCompletions, "protocol"));
    *out = make_error(Error{kind, std::string(text), {}}, {.protocol = words}).release();
    return {};
  });
}

void galley_error_free(galley_error* error) {
  delete error;
}

galley_code galley_error_code(const galley_error* error) {
  return error == nullptr ? GALLEY_OK : error->code;
}

std::int32_t galley_error_http_status(const galley_error* error) {
  return error == nullptr ? 0 : recipe::http_status(error->error.code);
}

galley_slice galley_error_message(const galley_error* error) {
  return error == nullptr ? galley_slice{} : slice(error->error.what);
}

galley_slice galley_error_where(const galley_error* error) {
  return error == nullptr ? galley_slice{} : slice(error->error.where);
}

galley_slice galley_error_body(const galley_error* error) {
  return error == nullptr ? galley_slice{} : slice(error->body);
}

// ---- Owned results ------------------------------------------------------------------------------

const std::uint32_t* galley_ids_data(const galley_ids* ids) {
  return ids == nullptr || ids->ids.empty() ? nullptr : ids->ids.data();
}

std::size_t galley_ids_count(const galley_ids* ids) {
  return ids == nullptr ? 0 : ids->ids.size();
}

void galley_ids_free(galley_ids* ids) {
  delete ids;
}

galley_slice galley_text_slice(const galley_text* text) {
  return text == nullptr ? galley_slice{} : slice(text->text);
}

void galley_text_free(galley_text* text) {
  delete text;
}

// ---- Tokenizer ----------------------------------------------------------------------------------

galley_code galley_tokenizer_from_file(const char* path,
                                       std::size_t path_size,
                                       const galley_rename* renames,
                                       std::size_t rename_count,
                                       galley_tokenizer** out,
                                       galley_error** error) {
  return guarded(error, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(const std::string_view name, view(path, path_size, "path"));
    GALLEY_TRY(const recipe::TokenizerOptions options, renames_of(renames, rename_count));
    GALLEY_TRY(SharedTokenizer tokenizer,
               recipe::Tokenizer::from_file(std::filesystem::path(name), options));
    *out = make_tokenizer(std::move(tokenizer));
    return {};
  });
}

galley_code galley_tokenizer_from_json(const char* json,
                                       std::size_t json_size,
                                       const galley_rename* renames,
                                       std::size_t rename_count,
                                       galley_tokenizer** out,
                                       galley_error** error) {
  return guarded(error, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(const std::string_view text, view(json, json_size, "json"));
    GALLEY_TRY(const recipe::TokenizerOptions options, renames_of(renames, rename_count));
    GALLEY_TRY(SharedTokenizer tokenizer, recipe::Tokenizer::from_json(text, options));
    *out = make_tokenizer(std::move(tokenizer));
    return {};
  });
}

void galley_tokenizer_free(galley_tokenizer* tokenizer) {
  delete tokenizer;
}

galley_code galley_tokenizer_encode(const galley_tokenizer* tokenizer,
                                    const char* text,
                                    std::size_t text_size,
                                    std::int32_t recognise_added,
                                    galley_ids** out,
                                    galley_error** error) {
  return guarded(error, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(tokenizer != nullptr, "tokenizer is NULL"));
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(const std::string_view source, view(text, text_size, "text"));
    GALLEY_TRY(const bool with_added, flag_of(recognise_added));
    auto result = std::make_unique<galley_ids>();
    const recipe::Tokenizer& vocabulary = *tokenizer->vocabulary->tokenizer();
    if (with_added) {
      vocabulary.encode_with_added(source, result->ids);
    } else {
      vocabulary.encode(source, result->ids);
    }
    *out = result.release();
    return {};
  });
}

galley_code galley_tokenizer_decode(const galley_tokenizer* tokenizer,
                                    const std::uint32_t* ids,
                                    std::size_t id_count,
                                    galley_text** out,
                                    galley_error** error) {
  return guarded(error, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(tokenizer != nullptr, "tokenizer is NULL"));
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(const std::span<const galley::TokenId> source, array(ids, id_count, "ids"));
    *out = new galley_text{tokenizer->vocabulary->tokenizer()->decode(source)};
    return {};
  });
}

std::size_t galley_tokenizer_vocabulary_size(const galley_tokenizer* tokenizer) {
  return tokenizer == nullptr ? 0 : tokenizer->vocabulary->tokenizer()->vocabulary_size();
}

galley_code galley_tokenizer_find_added(const galley_tokenizer* tokenizer,
                                        const char* spelling,
                                        std::size_t spelling_size,
                                        std::uint32_t* out,
                                        galley_error** error) {
  return guarded(error, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(tokenizer != nullptr, "tokenizer is NULL"));
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(const std::string_view name, view(spelling, spelling_size, "spelling"));
    const std::optional<galley::TokenId> id = tokenizer->vocabulary->tokenizer()->find_added(name);
    if (!id) {
      return galley::fail(Code::kNotFound, "no added token is spelled " + std::string(name));
    }
    *out = *id;
    return {};
  });
}

// ---- Options ------------------------------------------------------------------------------------

galley_code galley_options_create(galley_options** out) {
  return guarded(nullptr, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    *out = new galley_options{};
    return {};
  });
}

void galley_options_free(galley_options* options) {
  delete options;
}

galley_code galley_options_set(galley_options* options, galley_option option, std::int32_t value) {
  return guarded(nullptr, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(options != nullptr, "options is NULL"));
    if (option == GALLEY_OPTION_COMPAT) {
      GALLEY_TRY(options->options.compat, enum_of(value, recipe::Compat::kRecipe02, "compat"));
      return {};
    }
    GALLEY_TRY(const bool flag, flag_of(value));
    switch (option) {
      case GALLEY_OPTION_DEFAULT_THINKING:
        options->options.default_thinking = flag;
        return {};
      case GALLEY_OPTION_REJECT_MISSING_REASONING:
        options->options.reject_missing_reasoning = flag;
        return {};
      case GALLEY_OPTION_MESSAGES_DROP_WEB_SEARCH:
        options->options.messages_drop_web_search = flag;
        return {};
      case GALLEY_OPTION_RESPONSES_REJECT_WEB_SEARCH:
        options->options.responses_reject_web_search = flag;
        return {};
      default:
        return misuse("no such option: " + std::to_string(option));
    }
  });
}

galley_code galley_options_add_model(galley_options* options,
                                     const char* name,
                                     std::size_t name_size,
                                     galley_model_version version) {
  return guarded(nullptr, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(options != nullptr, "options is NULL"));
    GALLEY_TRY(const std::string_view model, view(name, name_size, "name"));
    GALLEY_TRY(const recipe::ModelVersion which,
               enum_of(version, recipe::ModelVersion::kV41, "model version"));
    options->options.models.insert_or_assign(std::string(model), which);
    return {};
  });
}

galley_code galley_options_clear_models(galley_options* options) {
  return guarded(nullptr, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(options != nullptr, "options is NULL"));
    options->options.models.clear();
    return {};
  });
}

// ---- Requests -----------------------------------------------------------------------------------

galley_code galley_request_parse(galley_protocol protocol,
                                 const char* body,
                                 std::size_t body_size,
                                 const galley_options* options,
                                 galley_request** out,
                                 galley_error** error) {
  const bool known = protocol >= GALLEY_CHAT && protocol <= GALLEY_COMPLETIONS;
  const Dialect dialect{
      known ? static_cast<recipe::Protocol>(protocol) : recipe::Protocol::kChat,
      options == nullptr ? recipe::Compat::kGalley : options->options.compat,
  };
  return guarded(error, dialect, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(const recipe::Protocol kind,
               enum_of(protocol, recipe::Protocol::kCompletions, "protocol"));
    GALLEY_TRY(const std::string_view text, view(body, body_size, "body"));
    GALLEY_TRY(recipe::Request request,
               recipe::parse_request(
                   kind, text, options == nullptr ? recipe::CodecOptions{} : options->options));
    auto result = std::make_unique<galley_request>();
    for (const auto& [id, bias] : request.sampling.logit_bias) {
      result->logit_bias.push_back({.id = id, .bias = bias});
    }
    result->request = std::make_shared<const recipe::Request>(std::move(request));
    *out = result.release();
    return {};
  });
}

void galley_request_free(galley_request* request) {
  delete request;
}

galley_slice galley_request_model(const galley_request* request) {
  return request == nullptr ? galley_slice{} : slice(request->request->model);
}

galley_model_version galley_request_version(const galley_request* request) {
  return request == nullptr ? 0 : static_cast<galley_model_version>(request->request->version);
}

std::int32_t galley_request_stream(const galley_request* request) {
  return request != nullptr && request->request->stream ? 1 : 0;
}

galley_slice galley_request_user(const galley_request* request) {
  return request == nullptr ? galley_slice{} : slice(request->request->user);
}

std::size_t galley_request_note_count(const galley_request* request) {
  return request == nullptr ? 0 : request->request->notes.size();
}

galley_slice galley_request_note(const galley_request* request, std::size_t index) {
  return index < galley_request_note_count(request) ? slice(request->request->notes[index])
                                                    : galley_slice{};
}

galley_code galley_request_sampling(const galley_request* request, galley_sampling* out) {
  return guarded(nullptr, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(request != nullptr, "request is NULL"));
    const recipe::Sampling& sampling = request->request->sampling;
    return write_struct(
        galley_sampling{
            .struct_size = 0,
            .temperature = sampling.temperature,
            .top_p = sampling.top_p,
            .presence_penalty = sampling.presence_penalty,
            .frequency_penalty = sampling.frequency_penalty,
            .max_tokens = sampling.max_tokens.value_or(-1),
            .seed = sampling.seed.value_or(-1),
            .top_k = sampling.top_k.value_or(-1),
            .n = sampling.n,
            .logprobs = sampling.logprobs ? 1 : 0,
            .top_logprobs = sampling.top_logprobs.value_or(-1),
            .logit_bias = request->logit_bias.empty() ? nullptr : request->logit_bias.data(),
            .logit_bias_count = request->logit_bias.size(),
            .min_p = sampling.min_p,
        },
        out);
  });
}

galley_code galley_request_max_tokens(const galley_request* request,
                                      std::int64_t prompt_tokens,
                                      std::int64_t context_tokens,
                                      std::int64_t* out,
                                      galley_error** error) {
  return guarded(error, dialect_of(request), [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(request != nullptr, "request is NULL"));
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(*out,
               recipe::effective_max_tokens(*request->request, prompt_tokens, context_tokens));
    return {};
  });
}

galley_constraint galley_request_constraint(const galley_request* request, galley_slice* text) {
  if (request == nullptr) {
    return GALLEY_CONSTRAINT_NONE;
  }
  const recipe::Constraint& constraint = request->request->constraint;
  if (text != nullptr) {
    *text = slice(constraint.text);
  }
  return static_cast<galley_constraint>(constraint.kind);
}

galley_code galley_request_stop_ids(const galley_request* request,
                                    const galley_tokenizer* tokenizer,
                                    galley_ids** out,
                                    galley_error** error) {
  return guarded(error, dialect_of(request), [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(request != nullptr, "request is NULL"));
    GALLEY_CHECK_OK(require(tokenizer != nullptr, "tokenizer is NULL"));
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(std::vector<galley::TokenId> ids,
               tokenizer->vocabulary->stop_ids(*request->request));
    *out = new galley_ids{std::move(ids)};
    return {};
  });
}

// ---- Prompts ------------------------------------------------------------------------------------

galley_code galley_request_render(const galley_request* request,
                                  galley_prompt** out,
                                  galley_error** error) {
  return guarded(error, dialect_of(request), [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(request != nullptr, "request is NULL"));
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    const recipe::Request& source = *request->request;
    *out = make_prompt(recipe::render(source), source.version);
    return {};
  });
}

galley_code galley_render_fim(galley_model_version version,
                              const char* prefix,
                              std::size_t prefix_size,
                              const char* suffix,
                              std::size_t suffix_size,
                              galley_prompt** out,
                              galley_error** error) {
  return guarded(error, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(const recipe::ModelVersion which,
               enum_of(version, recipe::ModelVersion::kV41, "model version"));
    GALLEY_TRY(const std::string_view before, view(prefix, prefix_size, "prefix"));
    GALLEY_TRY(const std::string_view after, view(suffix, suffix_size, "suffix"));
    *out = make_prompt(recipe::render_fim(before, after), which);
    return {};
  });
}

void galley_prompt_free(galley_prompt* prompt) {
  delete prompt;
}

galley_slice galley_prompt_text(const galley_prompt* prompt) {
  return prompt == nullptr ? galley_slice{} : slice(prompt->prompt.text);
}

const galley_span* galley_prompt_controls(const galley_prompt* prompt, std::size_t* count) {
  if (count == nullptr) {
    return nullptr;
  }
  *count = prompt == nullptr ? 0 : prompt->controls.size();
  return *count == 0 ? nullptr : prompt->controls.data();
}

galley_code galley_prompt_ids(const galley_prompt* prompt,
                              const galley_tokenizer* tokenizer,
                              galley_ids** out,
                              galley_error** error) {
  return guarded(error, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(prompt != nullptr, "prompt is NULL"));
    GALLEY_CHECK_OK(require(tokenizer != nullptr, "tokenizer is NULL"));
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(std::vector<galley::TokenId> ids,
               tokenizer->vocabulary->encode(prompt->prompt, prompt->version));
    *out = new galley_ids{std::move(ids)};
    return {};
  });
}

std::size_t galley_prompt_image_count(const galley_prompt* prompt) {
  return prompt == nullptr ? 0 : prompt->prompt.images.size();
}

galley_code galley_prompt_image(const galley_prompt* prompt, std::size_t index, galley_image* out) {
  return guarded(nullptr, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(index < galley_prompt_image_count(prompt), "no such image"));
    const recipe::Image& image = prompt->prompt.images[index];
    return write_struct(
        galley_image{
            .struct_size = 0,
            .is_data_url = image.kind == recipe::Image::Kind::kDataUrl ? 1 : 0,
            .detail = static_cast<galley_image_detail>(image.detail),
            .path = slice(image.path),
            .reference = slice(image.reference),
        },
        out);
  });
}

galley_code galley_image_tokens(std::int64_t width,
                                std::int64_t height,
                                std::int64_t* out,
                                galley_error** error) {
  return guarded(error, {}, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(const recipe::ImageGrid grid, recipe::image_grid(width, height));
    *out = grid.tokens;
    return {};
  });
}
