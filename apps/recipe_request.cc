#include "apps/recipe_request.h"

#include <span>
#include <vector>

#include "apps/options.h"
#include "recipe/json.h"
#include "recipe/names.h"

namespace galley::apps {
namespace {

CLI::IsMember one_of(std::span<const std::string_view> names) {
  return CLI::IsMember(std::vector<std::string>(names.begin(), names.end()));
}

}  // namespace

void RequestFlags::add_to(CLI::App& command) {
  command.add_option("--protocol", protocol, "The protocol of the request body.")
      ->check(one_of(recipe::kNames<recipe::Protocol>))
      ->capture_default_str();
  command
      .add_option("--model", model,
                  "The model version to render for, whatever model the body names. Without it the "
                  "body must name a known model.")
      ->check(one_of(recipe::kNames<recipe::ModelVersion>));
  command.add_option("--compat", compat, "Reproduce the reference codec, its defects included.")
      ->check(one_of(recipe::kNames<recipe::Compat>))
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
  const auto kind = recipe::named<recipe::Protocol>(protocol);
  if (!kind) {
    return fail(Code::kInvalidArgument, "no such protocol: " + protocol);
  }
  return recipe::parse_request(*kind, body, options);
}

}  // namespace galley::apps
