// Goal: every value has one meaning and one source, and everything unknown or malformed stops the
// load with an error that names key, place and expectation.
// Method: one table with an option of every type, loaded from text; whole messages are compared.
#include "base/config.h"

#include <array>
#include <gtest/gtest.h>

#include "base/check.h"

namespace galley {
namespace {

using namespace std::chrono_literals;

constexpr std::array<std::string_view, 2> kLevels{"info", "debug"};
constexpr std::array kOptions{
    ConfigOption{.key = "server.host", .initial = "127.0.0.1", .help = "Address to listen on."},
    ConfigOption{.key = "server.port",
                 .type = ConfigType::kInteger,
                 .initial = "8000",
                 .help = "Port to listen on.",
                 .min = 0,
                 .max = 65535},
    ConfigOption{.key = "server.api_keys",
                 .type = ConfigType::kList,
                 .initial = "",
                 .help = "Keys that may ask.",
                 .secret = true},
    ConfigOption{.key = "server.password", .initial = "", .help = "P.", .secret = true},
    ConfigOption{.key = "log.level",
                 .type = ConfigType::kChoice,
                 .initial = "info",
                 .help = "Least level.",
                 .choices = kLevels},
    ConfigOption{.key = "log.colour", .type = ConfigType::kBool, .initial = "false", .help = "C."},
    ConfigOption{.key = "limits.wait",
                 .type = ConfigType::kDuration,
                 .initial = "30s",
                 .help = "W.",
                 .min = 1,
                 .max = 3'600'000'000'000},
    ConfigOption{.key = "limits.body",
                 .type = ConfigType::kSize,
                 .initial = "32MiB",
                 .help = "B.",
                 .min = 1},
    ConfigOption{.key = "server.origins", .type = ConfigType::kList, .initial = "", .help = "O."},
    ConfigOption{.key = "models", .type = ConfigType::kMap, .initial = "", .help = "M."},
};

Result<Config> load(std::string file,
                    std::vector<std::string> environment = {},
                    std::vector<std::string> args = {}) {
  if (!file.empty()) {
    args.emplace_back("--config=g.toml");
  }
  return Config::load(kOptions, {.args = std::move(args),
                                 .environment = std::move(environment),
                                 .exempt = {"GALLEY_ISA", "GALLEY_TEST_*"},
                                 .read_file = [file](const std::string&) { return file; }});
}

std::string error_of(const Result<Config>& config) {
  if (config) {
    return "loaded";
  }
  EXPECT_EQ(config.error().code, Code::kInvalidArgument);
  return config.error().what + " @ " + config.error().where;
}

TEST(Config, DefaultsHoldWithoutInput) {
  const auto config = load("");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->string("server.host"), "127.0.0.1");
  EXPECT_EQ(config->integer("server.port"), 8000);
  EXPECT_EQ(config->string("log.level"), "info");
  EXPECT_FALSE(config->boolean("log.colour"));
  EXPECT_EQ(config->duration("limits.wait"), 30s);
  EXPECT_EQ(config->size("limits.body"), Bytes(32 << 20));
  EXPECT_TRUE(config->list("server.origins").empty());
  EXPECT_TRUE(config->map("models").empty());
  EXPECT_TRUE(config->secrets("server.api_keys").empty());
  EXPECT_EQ(config->source("server.port"), "default");
  EXPECT_EQ(config->string("config"), "");
}

TEST(Config, EveryTypeFromTheFile) {
  const auto config = load(R"(
models = { "a b" = "v4", c = "v4.1" }
[server]
host = "::"
port = 65535
api_keys = ["k1", "k2"]
password = "p"
origins = ["a,b", "c"]
[log]
level = "debug"
colour = true
[limits]
wait = "1h"
body = 4096
)");
  ASSERT_TRUE(config) << to_string(config.error());
  EXPECT_EQ(config->string("server.host"), "::");
  EXPECT_EQ(config->integer("server.port"), 65535);
  EXPECT_EQ(config->secrets("server.api_keys").at(1).reveal(), "k2");
  EXPECT_EQ(config->secret("server.password").reveal(), "p");
  EXPECT_EQ(config->list("server.origins"), (ConfigList{"a,b", "c"}));
  EXPECT_EQ(config->string("log.level"), "debug");
  EXPECT_TRUE(config->boolean("log.colour"));
  EXPECT_EQ(config->duration("limits.wait"), 1h);
  EXPECT_EQ(config->size("limits.body"), Bytes(4096));
  EXPECT_EQ(config->map("models"), (ConfigMap{{"a b", "v4"}, {"c", "v4.1"}}));
  EXPECT_EQ(config->source("server.port"), "g.toml:5");
  EXPECT_EQ(config->source("models"), "g.toml:2");
  EXPECT_EQ(load("[models]\nx = \"y\"")->map("models"), (ConfigMap{{"x", "y"}}));
  EXPECT_EQ(load("limits.body = \"1KiB\"")->size("limits.body"), Bytes(1024));
}

TEST(Config, EveryTypeFromVariablesAndFlags) {
  const std::vector<std::pair<std::string, std::string>> values{
      {"server.host", "::"},      {"server.port", "0"},      {"server.api_keys", "k1,k2"},
      {"server.password", "p=,"}, {"log.level", "debug"},    {"log.colour", "true"},
      {"limits.wait", "250ms"},   {"server.origins", "a,b"}, {"models", "x=y=z,u=v"},
      {"limits.body", "2kB"}};
  const std::vector<std::string> variables{"GALLEY_SERVER_HOST",     "GALLEY_SERVER_PORT",
                                           "GALLEY_SERVER_API_KEYS", "GALLEY_SERVER_PASSWORD",
                                           "GALLEY_LOG_LEVEL",       "GALLEY_LOG_COLOUR",
                                           "GALLEY_LIMITS_WAIT",     "GALLEY_SERVER_ORIGINS",
                                           "GALLEY_MODELS",          "GALLEY_LIMITS_BODY"};
  std::vector<std::string> environment;
  std::vector<std::string> args;
  for (std::size_t i = 0; i < values.size(); ++i) {
    environment.push_back(variables[i] + "=" + values[i].second);
    args.push_back("--" + values[i].first + "=" + values[i].second);
  }
  for (const auto& config : {load("", environment), load("", {}, args)}) {
    ASSERT_TRUE(config) << to_string(config.error());
    EXPECT_EQ(config->string("server.host"), "::");
    EXPECT_EQ(config->integer("server.port"), 0);
    EXPECT_EQ(config->secrets("server.api_keys").size(), 2U);
    EXPECT_EQ(config->secret("server.password").reveal(), "p=,");
    EXPECT_TRUE(config->boolean("log.colour"));
    EXPECT_EQ(config->duration("limits.wait"), 250ms);
    EXPECT_EQ(config->list("server.origins"), (ConfigList{"a", "b"}));
    EXPECT_EQ(config->map("models"), (ConfigMap{{"x", "y=z"}, {"u", "v"}}));
    EXPECT_EQ(config->size("limits.body"), Bytes(2000));
  }
  EXPECT_EQ(load("", environment)->source("log.level"), "GALLEY_LOG_LEVEL");
  EXPECT_EQ(load("", {}, args)->source("log.level"), "--log.level");
}

TEST(Config, FlagsBeatVariablesBeatTheFile) {
  const std::string file = "[server]\nport = 1";
  EXPECT_EQ(load(file)->integer("server.port"), 1);
  EXPECT_EQ(load(file, {"GALLEY_SERVER_PORT=2"})->integer("server.port"), 2);
  const auto config = load(file, {"GALLEY_SERVER_PORT=2"}, {"--server.port", "3"});
  EXPECT_EQ(config->integer("server.port"), 3);
  EXPECT_EQ(config->source("server.port"), "--server.port");
}

TEST(Config, AStrongerSourceDoesNotHideAMistake) {
  EXPECT_EQ(error_of(load("server.port = -1", {"GALLEY_SERVER_PORT=2"}, {"--server.port=3"})),
            "server.port: expected an integer from 0 to 65535, got \"-1\" @ g.toml:1");
  EXPECT_EQ(error_of(load("", {"GALLEY_SERVER_PORT=x"}, {"--server.port=3"})),
            "server.port: expected an integer from 0 to 65535, got \"x\" @ GALLEY_SERVER_PORT");
}

TEST(Config, FlagForms) {
  EXPECT_EQ(load("", {}, {"--server-port", "7"})->integer("server.port"), 7);
  EXPECT_EQ(load("", {}, {"--server-api-keys=a"})->secrets("server.api_keys").size(), 1U);
  const auto bare = load("", {}, {"--log.colour", "--server.port", "7"});
  ASSERT_TRUE(bare) << to_string(bare.error());
  EXPECT_TRUE(bare->boolean("log.colour"));
  EXPECT_EQ(bare->integer("server.port"), 7);
  EXPECT_FALSE(load("", {}, {"--log.colour", "false"})->boolean("log.colour"));
  EXPECT_FALSE(load("", {}, {"--log.colour=false"})->boolean("log.colour"));
  EXPECT_TRUE(load("", {}, {"--log.colour", "true"})->boolean("log.colour"));
  EXPECT_EQ(error_of(load("", {}, {"--log.colour", "off"})),
            "log.colour: expected true or false, got \"off\" @ --log.colour");
  EXPECT_EQ(load("", {}, {"--server.host="})->string("server.host"), "");
  EXPECT_EQ(load("", {}, {"--server.host=a=b"})->string("server.host"), "a=b");
  EXPECT_EQ(error_of(load("", {}, {"--server.port"})),
            "server.port: expected an integer from 0 to 65535, got nothing @ --server.port");
  EXPECT_EQ(error_of(load("", {}, {"--server.port", "--log.colour"})),
            "server.port: expected an integer from 0 to 65535, got nothing @ --server.port");
  EXPECT_EQ(error_of(load("", {}, {"--server.port=1", "--server-port=1"})),
            "flag given twice @ --server.port");
  EXPECT_EQ(error_of(load("", {}, {"serve"})), "unexpected argument \"serve\" @ ");
  EXPECT_EQ(error_of(load("", {}, {"-p"})), "unexpected argument \"-p\" @ ");
}

TEST(Config, UnknownKeysStopWithTheNearest) {
  EXPECT_EQ(error_of(load("[server]\nprot = 1")),
            "unknown configuration key \"server.prot\"; the nearest known key is server.port @ "
            "g.toml:2");
  EXPECT_EQ(error_of(load("[servers]\nport = 1")),
            "unknown configuration key \"servers.port\"; the nearest known key is server.port @ "
            "g.toml:2");
  EXPECT_EQ(
      error_of(load("[log.levels]")),
      "unknown configuration key \"log.levels\"; the nearest known key is log.level @ g.toml:1");
  EXPECT_EQ(error_of(load("", {"GALLEY_LOG_LEVLE=info"})),
            "unknown configuration key \"LOG_LEVLE\"; the nearest known key is log.level @ "
            "GALLEY_LOG_LEVLE");
  EXPECT_EQ(error_of(load("", {}, {"--model", "x"})),
            "unknown configuration key \"model\"; the nearest known key is models @ --model");
  EXPECT_EQ(error_of(load("", {}, {"--port", "1"})),
            "unknown configuration key \"port\"; the nearest known key is server.port @ --port");
}

TEST(Config, FileKeysAreExact) {
  for (const char* file : {"\"server.port\" = 1", "server-port = 1", "server_port = 1",
                           "[Server]\nport = 1", "config = \"x\"", "\"\" = 1"}) {
    EXPECT_TRUE(error_of(load(file)).starts_with("unknown configuration key")) << file;
  }
  for (const char* variable : {"GALLEY_=1", "GALLEY_server_port=1", "GALLEY_SERVER.PORT=1"}) {
    EXPECT_TRUE(error_of(load("", {variable})).starts_with("unknown configuration key"))
        << variable;
  }
  for (const char* flag : {"--", "--SERVER.PORT=1", "--=1", "---server.port=1"}) {
    EXPECT_TRUE(error_of(load("", {}, {flag})).starts_with("unknown configuration key")) << flag;
  }
}

TEST(Config, OtherVariablesAreLeftAlone) {
  EXPECT_TRUE(load("", {"PATH=/bin", "GALLEY=1", "GALLEY_ISA=avx2", "GALLEY_TEST_X=1", "noequals",
                        "GALLEY_TEST_", ""}));
  EXPECT_FALSE(load("", {"GALLEY_ISA2=1"}));
  EXPECT_FALSE(load("", {"GALLEY_TEST=1"}));
}

TEST(Config, BadValuesNameKeyPlaceAndExpectation) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"server.port = 65536", "server.port: expected an integer from 0 to 65535, got \"65536\""},
      {"server.port = \"1\"", "server.port: expected an integer from 0 to 65535, got \"1\""},
      {"server.port = 1.0", "server.port: expected an integer from 0 to 65535, got \"a float\""},
      {"server.host = 1", "server.host: expected a string, got \"1\""},
      {"server.host = {}", "server.host: expected a string, got \"a table\""},
      {"log.level = \"loud\"", "log.level: expected one of info, debug, got \"loud\""},
      {"log.colour = \"true\"", "log.colour: expected true or false, got \"true\""},
      {"limits.wait = 30",
       "limits.wait: expected a duration such as 30s, from 1ns to 1h, got "
       "\"30\""},
      {"limits.wait = \"2h\"",
       "limits.wait: expected a duration such as 30s, from 1ns to 1h, got "
       "\"2h\""},
      {"limits.body = 0", "limits.body: expected a size such as 64MiB, of at least 1B, got \"0\""},
      {"limits.body = -1",
       "limits.body: expected a size such as 64MiB, of at least 1B, got \"-1\""},
      {"limits.body = true",
       "limits.body: expected a size such as 64MiB, of at least 1B, got \"a boolean\""},
      {"server.origins = [1]",
       "server.origins: expected strings that are not empty (in a variable "
       "or flag: a,b), got \"an array\""},
      {"server.origins = [\"\"]",
       "server.origins: expected strings that are not empty (in a "
       "variable or flag: a,b), got \"an array\""},
      {"models = { a = 1 }",
       "models: expected names and values that are not empty (in a variable "
       "or flag: name=value,name=value), got \"a table\""},
      {"models = 1979-05-27",
       "models: expected names and values that are not empty (in a variable "
       "or flag: name=value,name=value), got \"a date or time\""},
  };
  for (const auto& [file, message] : cases) {
    EXPECT_EQ(error_of(load("# first line\n" + file)), message + " @ g.toml:2");
  }
  for (const char* models : {"a", "=b", "a=", "a=b,", ",", "a=b,a=c", "a=b,,c=d"}) {
    EXPECT_FALSE(load("", {std::string("GALLEY_MODELS=") + models})) << models;
  }
  for (const char* origins : {",", "a,", ",a", "a,,b"}) {
    EXPECT_FALSE(load("", {std::string("GALLEY_SERVER_ORIGINS=") + origins})) << origins;
  }
  for (const char* port : {"", " 1", "1 ", "+1", "0x1", "1.0", "99999999999999999999", "65536"}) {
    EXPECT_FALSE(load("", {std::string("GALLEY_SERVER_PORT=") + port})) << port;
  }
}

TEST(Config, GroupsMayBeEmpty) {
  EXPECT_EQ(error_of(load("[server]\n[log]\nlevel = \"debug\"\n[models]\n")), "loaded");
  EXPECT_EQ(
      error_of(load("server = 1")),
      "unknown configuration key \"server\"; the nearest known key is server.host @ g.toml:1");
  EXPECT_EQ(error_of(load("[serve]")),
            "unknown configuration key \"serve\"; the nearest known key is config @ g.toml:1");
}

TEST(Config, MalformedFilesNameTheLine) {
  const auto config = load("[server]\nport = \n");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().where, "g.toml:2");
  EXPECT_FALSE(load("[server]\nport = 1\nport = 2"));
  EXPECT_FALSE(load(std::string("a = \"\xFF\"")));
  EXPECT_FALSE(load("[%"));
  EXPECT_FALSE(load("é = 1"));
  EXPECT_FALSE(load("server.port = é"));
}

TEST(Config, DeepFilesAreRefusedWithoutDeepStacks) {
  std::string dotted = "a";
  for (int i = 0; i < 100'000; ++i) {
    dotted += ".a";
  }
  const auto config = load(dotted + " = 1");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, Code::kTooLarge);
  EXPECT_FALSE(load("a = " + std::string(4000, '[')));
  EXPECT_TRUE(error_of(load("a.b.c.d.e.f.g.h.i.j.k.l = 1"))
                  .starts_with("unknown configuration key \"a.b.c.d.e.f.g.h\";"));
}

TEST(Config, TheFileItselfComesFromFlagOrVariable) {
  std::vector<std::string> read;
  const auto read_file = [&read](const std::string& path) -> Result<std::string> {
    read.push_back(path);
    if (path == "missing") {
      return fail(Code::kNotFound, "no such file");
    }
    return "";
  };
  EXPECT_TRUE(
      Config::load(kOptions, {.environment = {"GALLEY_CONFIG=env.toml"}, .read_file = read_file}));
  const auto both = Config::load(kOptions, {.args = {"--config", "flag.toml"},
                                            .environment = {"GALLEY_CONFIG=env.toml"},
                                            .read_file = read_file});
  EXPECT_EQ(both->string("config"), "flag.toml");
  EXPECT_FALSE(Config::load(kOptions, {.args = {"--config=missing"}, .read_file = read_file}));
  EXPECT_TRUE(Config::load(kOptions, {.read_file = read_file}));
  EXPECT_EQ(read, (std::vector<std::string>{"env.toml", "flag.toml", "missing"}));
}

TEST(Config, SecretsAppearNowhere) {
  const auto config = load("server.password = \"hunter2\"", {"GALLEY_SERVER_API_KEYS=sk-1,sk-2"});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->table().find("hunter2"), std::string::npos);
  EXPECT_EQ(config->table().find("sk-1"), std::string::npos);
  EXPECT_EQ(error_of(load("server.password = 12345")),
            "server.password: expected a string, got *** @ g.toml:1");
  EXPECT_EQ(error_of(load("", {"GALLEY_SERVER_API_KEYS=sk-1,"})).find("sk-1"), std::string::npos);
}

TEST(Config, TableShowsValueAndSource) {
  const auto config = load("[models]\nm = \"v4\"\n", {"GALLEY_SERVER_PORT=9"},
                           {"--server.origins=a,b", "--server.password=x"});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->table(),
            "config           \"g.toml\"      --config\n"
            "limits.body      32MiB         default\n"
            "limits.wait      30s           default\n"
            "log.colour       false         default\n"
            "log.level        \"info\"        default\n"
            "models           {\"m\" = \"v4\"}  g.toml:1\n"
            "server.api_keys  ***           default\n"
            "server.host      \"127.0.0.1\"   default\n"
            "server.origins   [\"a\", \"b\"]    --server.origins\n"
            "server.password  ***           --server.password\n"
            "server.port      9             GALLEY_SERVER_PORT\n");
}

TEST(Config, HelpNamesEveryOption) {
  const std::string help = config_help(kOptions);
  EXPECT_NE(help.find("  --server.port integer\n      Port to listen on.\n      default 8000, "
                      "variable GALLEY_SERVER_PORT\n"),
            std::string::npos)
      << help;
  EXPECT_NE(help.find("--log.level info|debug\n"), std::string::npos) << help;
  EXPECT_NE(help.find("--config string\n"), std::string::npos) << help;
}

TEST(ConfigDeathTest, BadDeclarationsAndGettersAreBugs) {
  const auto declare = [](ConfigOption option) { (void)Config::load({&option, 1}, {}); };
  EXPECT_DEATH(declare({.key = "Bad"}), "well_formed_key");
  EXPECT_DEATH(declare({.key = "a..b"}), "well_formed_key");
  EXPECT_DEATH(declare({.key = "a", .type = ConfigType::kInteger, .initial = "x"}), "has_value");
  EXPECT_DEATH(declare({.key = "config"}), "emplace");
  EXPECT_DEATH(declare({.key = "a", .type = ConfigType::kBool, .initial = "true", .secret = true}),
               "secret");
  const std::array twins{ConfigOption{.key = "a.b"}, ConfigOption{.key = "a_b"}};
  EXPECT_DEATH((void)Config::load(twins, {}), "emplace");
  const auto config = load("");
  EXPECT_DEATH((void)config->integer("none"), "settings_");
  EXPECT_DEATH((void)config->integer("server.host"), "value");
  EXPECT_DEATH((void)config->string("server.password"), "secret");
  EXPECT_DEATH((void)config->secret("server.host"), "secret");
}

}  // namespace
}  // namespace galley
