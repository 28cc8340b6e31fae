#pragma once

#include <cstddef>
#include <cstdint>

// Every bound of the codec, in one place. Values marked "reference" are those of deepseek-recipe
// 0.2.0 and part of its error texts; the others are ours.
namespace galley::recipe {

inline constexpr std::size_t kBodyBytesMax = std::size_t{48}
                                             << 20U;  // request body (hosted service: 48 MiB)
inline constexpr int kJsonDepthMax = 127;             // reference: 128 levels are an error

inline constexpr std::size_t kStopCountMax = 16;        // reference
inline constexpr std::size_t kToolNameBytesMax = 128;   // reference
inline constexpr int kTopLogprobsMax = 20;              // reference
inline constexpr std::int64_t kMaxTokensMax = 393'216;  // reference: upper bound of max_tokens

inline constexpr std::int64_t kDefaultMaxTokensCompletion = 4'096;   // the hosted service's limit
inline constexpr std::int64_t kDefaultMaxTokensChat = 8'192;         // no thinking
inline constexpr std::int64_t kDefaultMaxTokensThinking = 65'536;    // thinking
inline constexpr std::int64_t kDefaultMaxTokensMaxEffort = 131'072;  // thinking at effort max
inline constexpr std::int64_t kContextTokensDefault =
    1'048'576;  // context length of the released models

inline constexpr std::size_t kImageCountMax = 600;                     // reference, per request
inline constexpr std::size_t kImageLinkBytesMax = 8'192;               // reference
inline constexpr std::size_t kImageBytesMax = std::size_t{32} << 20U;  // encoded, one image
inline constexpr std::size_t kImageBytesTotalMax = std::size_t{64} << 20U;  // encoded, one request

// Added by Galley: more than any real client sends, low enough that a hostile request costs little.
inline constexpr std::size_t kMessageCountMax = 100'000;
inline constexpr std::size_t kToolCountMax = 4'096;
inline constexpr std::size_t kStopBytesMax = 4'096;  // one stop string
inline constexpr int kChoiceCountMax = 16;           // n
inline constexpr std::size_t kLogitBiasCountMax = 1'024;
inline constexpr std::size_t kTagBytesMax = 4'096;  // one tag of a tool block in a reply
// Tool schemas repeated in a conversation where they are announced: a name of a few bytes stands
// for a whole schema.
inline constexpr std::size_t kAnnouncedBytesMax = std::size_t{16} << 20U;
inline constexpr std::size_t kGuidedChoiceCountMax = 4'096;
// A grammar or regular expression that a client writes: more terminals take too long to compile.
inline constexpr std::size_t kGuidedTextBytesMax = std::size_t{64} << 10U;
inline constexpr std::size_t kMetadataCountMax = 16;     // members of a Response's metadata
inline constexpr std::size_t kMetadataBytesMax = 2'048;  // 512 characters, as OpenAI has it
// What a Response repeats of its request, per member: more is answered as if it had not been sent.
inline constexpr std::size_t kEchoBytesMax = std::size_t{256} << 10U;
inline constexpr std::size_t kUserIdBytesMax = 512;  // user_id, user, metadata.user_id
inline constexpr std::size_t kNoteCountMax = 32;  // notes of one request; further ones are dropped

// A tokenizer.json, which the operator chooses (the V4 file: 6.4 MB, 129,280 ids, 128 bytes).
inline constexpr std::size_t kTokenizerJsonBytesMax = std::size_t{64} << 20U;
inline constexpr std::size_t kTokenIdsMax = std::size_t{1} << 21U;
inline constexpr std::size_t kTokenBytesMax = 1'024;  // one token as the file spells it

}  // namespace galley::recipe
