#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "gateway/api_keys.h"
#include "gateway/file_store.h"
#include "gateway/http_server.h"
#include "gateway/response_store.h"
#include "recipe/request.h"

// Every setting of the binary, and their translation into the options of the modules.
namespace galley::apps {

[[nodiscard]] std::span<const ConfigOption> config_options();

// From flags (`args`, after the subcommand), GALLEY_* variables and the file they name.
[[nodiscard]] Result<Config> load_config(std::vector<std::string> args);

[[nodiscard]] gateway::HttpOptions http_options(const Config& config);
[[nodiscard]] gateway::ResponseLimits response_limits(const Config& config);
[[nodiscard]] gateway::FileLimits file_limits(const Config& config);
// Of the file and of the setting. Error: a file that cannot be read, or with a bad line or no key.
[[nodiscard]] Result<gateway::ApiKeys> api_keys(const Config& config);
[[nodiscard]] Result<recipe::CodecOptions> codec_options(const Config& config);
[[nodiscard]] Result<LogOptions> log_options(const Config& config);

[[nodiscard]] Result<recipe::Compat> compat_of(std::string_view name);
[[nodiscard]] Result<recipe::ModelVersion> version_of(std::string_view name);

}  // namespace galley::apps
