#include "apps/recipe_request.h"

#include "apps/options.h"
#include "recipe/json.h"

namespace galley::apps {

void RequestFlags::add_to(CLI::App& command) {
  command.add_option("--protocol", protocol, "The protocol of the request body.")
      ->check(CLI::IsMember({"chat", "responses", "messages"}))
      ->capture_default_str();
  command
      .add_option("--model", model,
                  "The model version to render for, whatever model the body names. Without it the "
                  "body must name a known model.")
      ->check(CLI::IsMember({"v4", "v4.1"}));
  command.add_option("--compat", compat, "Reproduce the reference codec, its defects included.")
      ->check(CLI::IsMember({"galley", "recipe-0.2"}))
      ->capture_default_str();
}

Result<recipe::Request> RequestFlags::parse(const std::string& body) const {
  GALLEY_TRY(const Config config, load_config({}));  // for the model names
  GALLEY_TRY(recipe::CodecOptions options, codec_options(config));
  GALLEY_TRY(options.compat, compat_of(compat));
  if (!model.empty()) {
    GALLEY_TRY(const recipe::ModelVersion version, version_of(model));
    // A body that is no JSON is refused below, with the codec's own words.
    if (const auto json = recipe::parse_json(body)) {
      const recipe::Json* name = json->find("model");
      if (name != nullptr && name->string() != nullptr) {
        options.models[*name->string()] = version;
      }
    }
  }
  return recipe::parse_request(protocol == "chat"        ? recipe::Protocol::kChat
                               : protocol == "responses" ? recipe::Protocol::kResponses
                                                         : recipe::Protocol::kMessages,
                               body, options);
}

}  // namespace galley::apps
