#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "recipe/conversation.h"
#include "recipe/json.h"
#include "recipe/request.h"

// What the request parsers share (spec recipe 5): typed reading of JSON members with the path
// of an error, and the rules that are the same in every protocol. A parser works in two steps, as
// the order of checks asks for (spec 5.2): first every member is read and type-checked, then the
// values are judged.
namespace galley::recipe {

// A place in a request body ("messages[3].content[0].type"), spelled out only when an error names
// it. Holds a pointer to its parent, which therefore has to outlive it.
class Path {
 public:
  Path() = default;  // the whole body
  [[nodiscard]] Path member(std::string_view key) const& { return {this, key, 0}; }
  [[nodiscard]] Path element(std::size_t index) const& { return {this, {}, index}; }
  Path member(std::string_view key) const&& = delete;
  Path element(std::size_t index) const&& = delete;

  [[nodiscard]] std::string text() const;     // "" for the whole body
  [[nodiscard]] std::string pattern() const;  // the same for all elements: "messages[].content"

 private:
  Path(const Path* parent, std::string_view key, std::size_t index)
      : parent_(parent), key_(key), index_(index) {}
  [[nodiscard]] std::string spelled(bool with_indices) const;

  const Path* parent_ = nullptr;
  std::string_view key_;  // empty for an element: JSON's own empty key never names a known member
  std::size_t index_ = 0;
};

// kInvalidArgument at a place. `where` is never empty: the body itself is called "body".
[[nodiscard]] std::unexpected<Error> invalid(std::string what, const Path& at);

// The errors of the first step. `expected` reads like "a string".
[[nodiscard]] std::unexpected<Error> wrong_type(const Json& value,
                                                std::string_view expected,
                                                const Path& at);
[[nodiscard]] std::unexpected<Error> missing(const Path& at);
[[nodiscard]] std::unexpected<Error> unknown_value(std::string_view value,
                                                   std::span<const std::string_view> known,
                                                   const Path& at);
// A client's text inside a sentence of ours: at most 64 bytes of it, cut between characters.
[[nodiscard]] std::string_view clipped(std::string_view text);

// The members of one JSON object. null counts as absent. Texts are moved out of the object, so a
// member is read once. Remembers which members it was asked for: what a client sent and nobody read
// must not disappear without a word.
class Fields {
 public:
  // Error: `value` is no object. `value` and `at` must outlive the Fields.
  [[nodiscard]] static Result<Fields> open(Json& value, const Path& at);

  [[nodiscard]] const Path& at() const { return *at_; }
  [[nodiscard]] JsonObject& members() const { return *object_; }
  [[nodiscard]] Json* find(std::string_view key) const;
  // Also finds a null.
  [[nodiscard]] Json* find_any(std::string_view key) const;
  // Members that need no note although they have no effect.
  void expect(std::initializer_list<std::string_view> keys) const;
  // One note for each member that nobody asked for ("`tools[].function.x` is ignored"). null and an
  // empty array ask for nothing.
  void note_unread(std::vector<std::string>& notes) const;

  [[nodiscard]] Result<std::optional<std::string>> text(std::string_view key) const;
  [[nodiscard]] Result<std::string> required_text(std::string_view key) const;
  [[nodiscard]] Result<std::optional<bool>> boolean(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::uint64_t>> natural(std::string_view key,
                                                             std::uint64_t max) const;
  [[nodiscard]] Result<std::optional<float>> real(std::string_view key) const;  // single precision
  [[nodiscard]] Result<JsonArray*> array(std::string_view key) const;  // nullptr when absent
  [[nodiscard]] Result<JsonArray*> required_array(std::string_view key) const;
  // Index into `known`; absent stays absent.
  [[nodiscard]] Result<std::optional<std::size_t>> choice(
      std::string_view key, std::span<const std::string_view> known) const;
  [[nodiscard]] Result<std::size_t> required_choice(std::string_view key,
                                                    std::span<const std::string_view> known) const;

 private:
  Fields(JsonObject& object, const Path& at) : object_(&object), at_(&at) {}

  // Members with a higher index are not noted: the notes are full before that, whatever is known.
  static constexpr std::size_t kTrackedMax = 128;

  JsonObject* object_;
  const Path* at_;
  mutable std::bitset<kTrackedMax> read_;  // by member index
};

// Notes of a request: bounded, each distinct sentence once.
void add_note(std::vector<std::string>& notes, std::string note);
// What readers of nested objects need beside the JSON.
struct ReadContext {
  Compat compat{};
  std::vector<std::string>& notes;

  [[nodiscard]] bool galley() const { return compat == Compat::kGalley; }
  // The reference says nothing about what it does not read.
  void note_unread(const Fields& fields) const {
    if (galley()) {
      fields.note_unread(notes);
    }
  }
};

// Refuses members by name: {"functions", "Use 'tools' instead."}.
struct RefusedField {
  std::string_view name;
  std::string_view advice;
};
[[nodiscard]] Result<void> refuse_fields(const Fields& body, std::span<const RefusedField> refused);

// --- body, model, user -----------------------------------------------------------------------

// The body as an object. Errors: too large (kTooLarge), not JSON, not an object.
[[nodiscard]] Result<Json> parse_body(std::string_view body);
[[nodiscard]] Result<ModelVersion> find_model(const CodecOptions& options, std::string_view name);
// A name for isolation between end users: at most kUserIdBytesMax bytes; `strict` allows only
// [A-Za-z0-9_-] (the hosted service's rule for `user_id`).
[[nodiscard]] Result<void> check_user(std::string_view user, bool strict, const Path& at);
// `user_id` (strict), else `user`; empty when neither was sent.
[[nodiscard]] Result<std::string> read_user(const Fields& body);

// --- thinking (spec 5.1) ---------------------------------------------------------------------

enum class RequestedEffort : std::uint8_t {
  kNone,
  kMinimal,
  kLow,
  kMedium,
  kHigh,
  kXhigh,
  kUltra,
  kMax
};
[[nodiscard]] Result<std::optional<RequestedEffort>> read_effort(const Fields& fields,
                                                                 std::string_view key);
// `thinking {type, budget_tokens}`: whether it is on. A budget has no effect and gets a note.
[[nodiscard]] Result<std::optional<bool>> read_thinking(const Fields& body,
                                                        std::vector<std::string>& notes);
void settle_thinking(std::optional<bool> thinking,
                     std::optional<RequestedEffort> effort,
                     bool default_thinking,
                     Conversation& conversation);

// --- sampling and length (spec 5.1, 5.3) -------------------------------------------------------

struct SamplingFields {
  std::optional<std::uint64_t> n;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::optional<float> temperature;
  std::optional<float> top_p;
  bool logprobs = false;
  std::optional<std::uint64_t> top_logprobs;
  std::optional<std::uint64_t> max_tokens;
  std::string_view max_tokens_key = "max_tokens";  // the member it came from, for `where`
  bool clamp_max_tokens = false;                   // Messages: lower instead of refuse
  std::optional<std::uint64_t> seed;
  std::optional<std::uint64_t> top_k;
  std::optional<float> min_p;
};
[[nodiscard]] std::unexpected<Error> seed_out_of_range(const Path& at);
[[nodiscard]] Result<std::optional<std::uint64_t>> read_seed(const Fields& body);
// `n`, where any integer is read: one that is out of every range is 0, which is out of n's.
[[nodiscard]] Result<std::optional<std::uint64_t>> read_choice_count(const Fields& body);
// Error: too many entries, a key that is no token id, an amount outside [-100, 100].
[[nodiscard]] Result<std::vector<std::pair<TokenId, float>>> read_logit_bias(const Fields& body);
inline constexpr std::uint64_t kByteMax = 255;            // reference: n, top_logprobs are u8
inline constexpr std::uint64_t kWordMax = 4'294'967'295;  // reference: max_tokens is u32
inline constexpr std::uint64_t kNaturalMax = ~std::uint64_t{0};

// Checks in the reference's order and applies the policy of `compat`: the reference overrides
// temperature and top_p in thinking mode, Galley honours what was sent. Needs
// `conversation.thinking`, `tools` and `tool_choice`.
[[nodiscard]] Result<Sampling> settle_sampling(const SamplingFields& fields,
                                               const Conversation& conversation,
                                               ModelVersion version,
                                               Compat compat,
                                               std::vector<std::string>& notes);

// Stop strings: reading checks types only. `single` remembers that one string was sent, because the
// error text differs.
struct Stops {
  std::vector<std::string> strings;
  bool single = false;
};
[[nodiscard]] Result<Stops> read_stops(const Fields& body, std::string_view key);
[[nodiscard]] Result<void> check_stops(const Stops& stops, Compat compat, const Path& at);

// --- tools (spec 5.3, 5.4) ---------------------------------------------------------------------

// `place` is how the reference spells it ("tools[0].function"), which is also the path.
[[nodiscard]] Result<void> check_tool_name(std::string_view name, std::string_view place);

// A tool as declared: `place` as above, and the member of it that holds the schema.
struct DeclaredTool {
  Tool tool;
  std::string place;
  std::string_view schema_key = "parameters";
};

struct RequestedToolChoice {
  enum class Kind : std::uint8_t { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;  // kNamed
};

// Checks schemas, uniqueness and the choice, and fills `conversation.tools` and `tool_choice`
// (`conversation.thinking` must be set). The choice none skips all of it. In thinking mode the
// reference refuses a forced call; Galley carries kRequired, and the prompt does not open the block
// (the model thinks first), so its bytes are those of `auto`.
[[nodiscard]] Result<void> settle_tools(std::vector<DeclaredTool> declared,
                                        const RequestedToolChoice& choice,
                                        Compat compat,
                                        Conversation& conversation,
                                        std::vector<std::string>& notes);

// Arguments of a call in the history: blank text becomes "{}". Error: not JSON. JSON of another
// type than object stays as it is, the prompt shows it as text (spec 2.6).
[[nodiscard]] Result<void> settle_arguments(std::string& arguments, const Path& at);

// Tools announced in messages, of which only the name matters so far: replaces each by its settled
// form, drops the ones that are not declared and then System messages that are left with neither
// content nor tools. Error: a client repeated schemas until they exceed kAnnouncedBytesMax.
[[nodiscard]] Result<void> settle_announced_tools(Conversation& conversation);

// --- reasoning, formats, constraint, output (spec 5.3, 5.4, 2.9) ---------------------------------

// Outside thinking mode reasoning is removed, inside it a missing one becomes "". With `reject`
// returns the index (in `messages`) of the first message whose reasoning had to be sent.
[[nodiscard]] std::optional<std::size_t> settle_reasoning(std::vector<Message>& messages,
                                                          bool thinking,
                                                          bool has_tools,
                                                          bool reject);
// The reference's error text; `field` is "reasoning_content", "content[].thinking" or
// "reasoning_text".
[[nodiscard]] std::string missing_reasoning_text(std::string_view field);

// Whether the word json (ASCII, any case) is in any message content.
[[nodiscard]] bool mentions_json(const std::vector<Message>& messages);

// Error: strict tools mixed with others or with a response format. `forced_call` adds what the
// prompt does not show: a call is required although `conversation.tool_choice` is auto.
// `format_key` names the member that asked for a format, empty where none did.
[[nodiscard]] Result<Constraint> make_constraint(const Conversation& conversation,
                                                 std::string_view format_key,
                                                 bool forced_call = false);
// Galley's note when tools take the place of a response format in the constraint.
void note_unenforced_format(const Conversation& conversation, std::vector<std::string>& notes);
[[nodiscard]] OutputFormat make_output_format(const Conversation& conversation,
                                              std::vector<std::string> stop_sequences);

// --- content and images (spec 1.5, 5.3) ----------------------------------------------------------

inline constexpr std::string_view kUnsupportedImage = "[Unsupported Image]";
inline constexpr std::string_view kUnsupportedDocument = "[Unsupported Document]";

// Appends block number `index` of a list: "\n\n" stands before every one but the first.
void join_block(Content& content, Content block, std::size_t index);
[[nodiscard]] Content text_block(std::string text);
[[nodiscard]] Content image_block(Image image);

[[nodiscard]] Result<ImageDetail> read_detail(const Fields& fields);
[[nodiscard]] bool is_link(std::string_view url);  // begins with http, any case

// What the reference says about an external link longer than kImageLinkBytesMax, after the place.
[[nodiscard]] std::string link_too_long(std::size_t bytes);

// A url of chat or Responses: a link (the caller checks its length), else a data URL that
// check_data_urls judges later. `path` is what the image records.
[[nodiscard]] Image image_from_url(std::string url, ImageDetail detail, std::string path);
// The data URLs of `content`: "PATH: Unsupported image_url format" and its two companions.
[[nodiscard]] Result<void> check_data_urls(const Content& content,
                                           std::string_view path,
                                           const Path& at);

enum class DataUrlFault : std::uint8_t { kNone, kNoUrl, kMediaType, kBase64 };
// The Fetch standard's data URL, of one of the image types a model reads.
[[nodiscard]] DataUrlFault data_url_fault(std::string_view url);
// RFC 4648 base64 with canonical padding and zero trailing bits.
[[nodiscard]] bool is_base64(std::string_view data);

// Galley's bounds on all images of a conversation: number and encoded bytes.
[[nodiscard]] Result<void> check_image_limits(const Conversation& conversation);

}  // namespace galley::recipe
