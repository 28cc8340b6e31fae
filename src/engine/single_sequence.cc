#include "engine/single_sequence.h"

#include <algorithm>
#include <fmt/core.h>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/generation_check.h"
#include "engine/sampler.h"

namespace galley::engine {
namespace {

std::string describe(const model::ModelPlan& plan, const std::string& name) {
  return fmt::format("{} ({}, {} layers{}), one request at a time", name,
                     plan.config.family == model::Family::kV41 ? "V4.1" : "V4", plan.config.layers,
                     plan.drafts_by(model::DraftKind::kDspark) ? ", DSpark"
                     : plan.drafts_by(model::DraftKind::kMtp)  ? ", MTP"
                                                               : "");
}

}  // namespace

// One request and its sink. Shared by the handle that may cancel it and the queue or thread that
// works on it.
class SingleSequenceSource::Job {
 public:
  Job(recipe::Generation generation,
      recipe::TokenSink& sink,
      Seed seed,
      std::shared_ptr<const Grammar> grammar)
      : generation_(std::move(generation)),
        seed_(seed),
        sink_(sink),
        grammar_(std::move(grammar)) {}

  [[nodiscard]] const recipe::Generation& generation() const { return generation_; }
  [[nodiscard]] Seed seed() const { return seed_; }
  [[nodiscard]] const std::shared_ptr<const Grammar>& grammar() const { return grammar_; }

  // Calls the sink unless the request was cancelled; false when it was.
  template <class F>
  bool deliver(F call) GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (!cancelled_) {
      call(sink_);
    }
    return !cancelled_;
  }
  // Returns once no call of the sink is under way; none comes after.
  void cancel() GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    cancelled_ = true;
  }
  [[nodiscard]] bool cancelled() GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return cancelled_;
  }
  [[nodiscard]] bool expired(TimeNs now) const {
    return generation_.deadline && now >= *generation_.deadline;
  }
  void fail_expired() {
    deliver([](recipe::TokenSink& sink) {
      sink.on_error({.code = Code::kDeadlineExceeded, .what = "the request's time is over"});
    });
  }

 private:
  const recipe::Generation generation_;
  const Seed seed_;
  recipe::TokenSink& sink_;
  const std::shared_ptr<const Grammar> grammar_;  // or null
  Mutex mutex_;
  bool cancelled_ GALLEY_GUARDED_BY(mutex_) = false;
};

class SingleSequenceSource::Handle final : public recipe::ActiveGeneration {
 public:
  Handle(SingleSequenceSource& source, std::shared_ptr<Job> job)
      : source_(source), job_(std::move(job)) {}
  ~Handle() override {
    source_.forget(*job_);
    job_->cancel();
  }

 private:
  SingleSequenceSource& source_;
  const std::shared_ptr<Job> job_;
};

// One generation from its prompt to its end, on the source's thread.
class SingleSequenceSource::Run {
 public:
  Run(SingleSequenceSource& source, Job& job)
      : source_(source),
        network_(*source.network_),
        job_(job),
        generation_(job.generation()),
        sequence_(network_.new_sequence()),
        drafting_(source.options_.drafts && network_.plan().draft_stages > 0),
        matcher_(job.grammar() == nullptr ? nullptr : Matcher::begin(job.grammar())) {}

  void run() {
    const auto prompt = static_cast<std::int64_t>(generation_.prompt.size());
    job_.deliver([&](recipe::TokenSink& sink) { sink.on_start({.prompt_tokens = prompt}); });
    if (prefill()) {
      while (may_go_on() && decode()) {
      }
    }
  }

 private:
  // What a step settled.
  struct Settled {
    std::vector<TokenId> ids;
    std::vector<recipe::TokenLogprob> logprobs;
    std::optional<recipe::SourceFinish> finish;
    std::optional<Error> error;
  };

  bool may_go_on() {
    source_.fail_expired();
    if (job_.expired(source_.clock_.now())) {
      job_.fail_expired();
      return false;
    }
    return !job_.cancelled();
  }

  // Feeds the prompt and settles the first token. False when the generation is over.
  bool prefill() {
    const std::vector<std::int32_t> prompt(generation_.prompt.begin(), generation_.prompt.end());
    if (source_.options_.rebuild) {
      if (auto adopted = adopt_blocks(prompt, *source_.options_.rebuild); !adopted) {
        return fail_with(std::move(adopted).error());
      }
    }
    auto rest = std::span(prompt).subspan(static_cast<std::size_t>(sequence_->length()));
    model::ForwardResult result;
    while (!rest.empty()) {
      if (!may_go_on()) {
        return false;
      }
      const auto chunk = rest.first(std::min(rest.size(), source_.options_.prefill_chunk));
      rest = rest.subspan(chunk.size());
      auto fed = feed(chunk, rest.empty() ? 1 : 0);
      if (!fed) {
        return fail_with(std::move(fed).error());
      }
      result = *std::move(fed);
      keep_features(result, result.parts.front().rows);
      const MutexLock lock(source_.mutex_);
      source_.stats_.prompt_tokens += std::ssize(chunk);
    }
    Settled settled;
    if (const auto token = draw(result.logits, settled)) {
      next_ = static_cast<std::int32_t>(*token);
    }
    return deliver(settled);
  }

  // As after the longest hit the prompt may use: another sequence computes its blocks, this one
  // takes them over and begins where its windows have to be rebuilt.
  Result<void> adopt_blocks(std::span<const std::int32_t> prompt, model::WindowRebuild rebuild) {
    const model::HitRule rule = model::hit_rule(network_.plan(), rebuild);
    const std::int64_t hit = rule.longest_hit(std::ssize(prompt));
    if (hit == 0) {
      return {};
    }
    const auto found = network_.new_sequence();
    const model::SequenceRows rows{.sequence = found.get(),
                                   .tokens = prompt.first(static_cast<std::size_t>(hit))};
    GALLEY_TRY(const model::ForwardResult result, network_.forward({&rows, 1}, {.logits_tail = 0}));
    if (drafting_) {
      network_.draft_context(*found, result.features, 0);
    }
    const std::int64_t start = rule.replay_begin(hit);
    sequence_->adopt(found->blocks(), found->history(), start);
    if (rebuild == model::WindowRebuild::kStored) {
      sequence_->restore_state(found->save_state());
    } else {
      window_begin_ = start;
    }
    write_floor_ = hit;
    return {};
  }

  // One step: the newest token and drafts behind it. False when the generation is over.
  bool decode() {
    std::vector<std::int32_t> fed{next_};
    const std::int64_t left = generation_.max_tokens - answer_tokens_;
    model::DraftResult drafts;
    if (drafting_ && left > 1) {
      const model::DraftRow behind{.sequence = sequence_.get(), .token = next_};
      const auto choose = [&](std::size_t, std::size_t k, std::span<const float> logits) {
        return static_cast<std::int32_t>(draft_token(
            logits, generation_.sampling, counts_,
            {.seed = job_.seed(),
             .choice = generation_.choice,
             .position =
                 std::ssize(generation_.prompt) + answer_tokens_ + static_cast<std::int64_t>(k)}));
      };
      drafts = std::move(network_.draft({&behind, 1}, {.choose = choose}).front());
      const auto useful =
          std::min(std::ssize(drafts.tokens), static_cast<std::ptrdiff_t>(left - 1));
      fed.insert(fed.end(), drafts.tokens.begin(), drafts.tokens.begin() + useful);
    }
    const std::int64_t first = sequence_->length();
    auto step = feed(fed, fed.size());
    if (!step) {
      return fail_with(std::move(step).error());
    }
    const model::ForwardResult& result = *step;

    // A draft is right exactly if it is the token that would have been drawn without it.
    const std::size_t vocabulary = result.logits.size() / fed.size();
    const std::span<const float> logits = result.logits;
    Settled settled;
    std::size_t accepted = 0;
    for (std::size_t row = 0; row < fed.size(); ++row) {
      const auto token = draw(logits.subspan(row * vocabulary, vocabulary), settled);
      if (!token) {
        break;
      }
      next_ = static_cast<std::int32_t>(*token);
      if (row + 1 == fed.size() || fed[row + 1] != next_) {
        break;
      }
      ++accepted;
    }
    sequence_->truncate(first + 1 + static_cast<std::int64_t>(accepted));
    keep_features(result, 1 + accepted);
    {
      const MutexLock lock(source_.mutex_);
      ++source_.stats_.decode_steps;
      source_.stats_.drafts_verified += std::ssize(fed) - 1;
      source_.stats_.drafts_accepted += static_cast<std::int64_t>(accepted);
      // The first draft that was not accepted is judged too, by the token drawn in its place, which
      // may have ended the answer.
      const std::size_t judged = std::min(settled.error ? accepted : accepted + 1, fed.size() - 1);
      for (std::size_t i = 0; i < std::min(judged, drafts.confidences.size()); ++i) {
        const bool right = i < accepted || fed[i + 1] == static_cast<std::int32_t>(drawn_);
        note_confidence(source_.stats_.confidence, confidence(drafts.confidences[i], 1.0), right);
      }
    }
    return deliver(settled);
  }

  // The generation is over.
  bool fail_with(Error error) {
    Settled settled;
    settled.error = std::move(error);
    return deliver(settled);
  }

  Result<model::ForwardResult> feed(std::span<const std::int32_t> tokens, std::size_t logits_tail) {
    const model::SequenceRows rows{
        .sequence = sequence_.get(),
        .tokens = tokens,
        .window_begin = window_begin_,
        .write_floor = write_floor_,
        .prompt_tokens = static_cast<std::int64_t>(generation_.prompt.size())};
    return network_.forward({&rows, 1}, {.cut = source_.options_.cut, .logits_tail = logits_tail});
  }

  // The drafter's context of the first `rows` rows.
  void keep_features(const model::ForwardResult& result, std::size_t rows) {
    const model::ForwardResult::Part& part = result.parts.front();
    if (!drafting_ || part.rows == 0) {
      return;
    }
    const std::size_t width = result.features.size() / part.rows;
    network_.draft_context(*sequence_, std::span(result.features).first(rows * width),
                           part.first_position);
  }

  // Draws the next token of the answer; nothing when it ends there.
  std::optional<TokenId> draw(std::span<const float> logits, Settled& settled) {
    const Draw where{.seed = job_.seed(),
                     .choice = generation_.choice,
                     .position = std::ssize(generation_.prompt) + answer_tokens_};
    std::span<const MaskWord> mask;
    if (matcher_ != nullptr && !matcher_->unrestricted()) {
      mask_.resize(job_.grammar()->vocabulary().mask_words());
      if (auto filled = matcher_->fill(mask_); !filled) {
        settled.error = std::move(filled).error();
        return std::nullopt;
      }
      mask = mask_;
    }
    auto sampled = sample(logits, generation_.sampling, counts_, where, mask);
    if (!sampled) {
      settled.error = std::move(sampled).error();
      return std::nullopt;
    }
    drawn_ = sampled->token;
    if (std::ranges::find(generation_.stop_ids, sampled->token) != generation_.stop_ids.end()) {
      settled.finish = recipe::SourceFinish::kStop;
      return std::nullopt;
    }
    if (matcher_ != nullptr) {
      if (auto accepted = matcher_->accept(sampled->token); !accepted) {
        settled.error = std::move(accepted).error();
        return std::nullopt;
      }
    }
    settled.ids.push_back(sampled->token);
    if (generation_.sampling.logprobs) {
      settled.logprobs.push_back(with_text(*sampled, *source_.tokenizer_));
    }
    ++counts_[sampled->token];
    if (++answer_tokens_ == generation_.max_tokens) {
      settled.finish = recipe::SourceFinish::kLength;
      return std::nullopt;
    }
    return sampled->token;
  }

  // False when the generation is over.
  bool deliver(Settled& settled) {
    {
      const MutexLock lock(source_.mutex_);
      source_.stats_.answer_tokens += std::ssize(settled.ids);
    }
    const bool wanted = job_.deliver([&](recipe::TokenSink& sink) {
      if (!settled.ids.empty()) {
        sink.on_tokens(settled.ids, settled.logprobs);
      }
      if (settled.error) {
        sink.on_error(std::move(*settled.error));
      } else if (settled.finish) {
        sink.on_finish(*settled.finish);
      }
    });
    return wanted && !settled.error && !settled.finish;
  }

  SingleSequenceSource& source_;
  model::Network& network_;
  Job& job_;
  const recipe::Generation& generation_;
  const std::unique_ptr<model::Sequence> sequence_;
  const bool drafting_;
  const std::unique_ptr<Matcher> matcher_;  // or null
  std::vector<MaskWord> mask_;
  TokenCounts counts_;
  std::int64_t answer_tokens_ = 0;
  std::int64_t window_begin_ = 0;  // after a hit
  std::int64_t write_floor_ = 0;
  std::int32_t next_ = 0;  // settled, not yet fed
  TokenId drawn_ = 0;      // last, a stop token too
};

Result<std::unique_ptr<SingleSequenceSource>> SingleSequenceSource::create(
    std::unique_ptr<model::Network> network,
    std::shared_ptr<const recipe::Tokenizer> tokenizer,
    const Clock& clock,
    SingleSequenceOptions options) {
  GALLEY_ASSERT(options.waiting_max > 0);
  GALLEY_ASSERT(options.prefill_chunk > 0);
  GALLEY_CHECK_OK(check_model(network->plan(), *tokenizer, options.rebuild));
  return std::unique_ptr<SingleSequenceSource>(new SingleSequenceSource(
      std::move(network), std::move(tokenizer), clock, std::move(options)));
}

SingleSequenceSource::SingleSequenceSource(std::unique_ptr<model::Network> network,
                                           std::shared_ptr<const recipe::Tokenizer> tokenizer,
                                           const Clock& clock,
                                           SingleSequenceOptions options)
    : network_(std::move(network)),
      tokenizer_(std::move(tokenizer)),
      clock_(clock),
      options_(std::move(options)),
      context_tokens_(options_.context_tokens > 0
                          ? std::min(options_.context_tokens, network_->plan().config.positions_max)
                          : network_->plan().config.positions_max),
      description_(describe(network_->plan(), options_.name)),
      grammars_(tokenizer_) {
  thread_.post([this] { work(); });
}

SingleSequenceSource::~SingleSequenceSource() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
}

Result<std::unique_ptr<recipe::ActiveGeneration>> SingleSequenceSource::start(
    recipe::Generation generation, recipe::TokenSink& sink) {
  GALLEY_CHECK_OK(check_generation(
      generation, static_cast<std::size_t>(network_->plan().config.vocabulary), context_tokens_));
  GALLEY_TRY(auto grammar, grammars_.grammar_of(generation));
  std::shared_ptr<Job> job;
  {
    const MutexLock lock(mutex_);
    if (waiting_.size() == options_.waiting_max) {
      return fail(Code::kOverloaded,
                  fmt::format("{} requests are waiting already", options_.waiting_max));
    }
    const RandomBlock unasked = random_block(options_.seed, 0, started_++);
    const Seed seed(generation.sampling.seed ? static_cast<std::uint64_t>(*generation.sampling.seed)
                                             : std::uint64_t{unasked[1]} << 32U | unasked[0]);
    job = std::make_shared<Job>(std::move(generation), sink, seed, std::move(grammar));
    waiting_.push_back(job);
  }
  changed_.notify_all();
  return std::make_unique<Handle>(*this, std::move(job));
}

Result<void> SingleSequenceSource::prepare(recipe::Generation& generation) {
  GALLEY_TRY(generation.prepared, grammars_.grammar_of(generation));
  return {};
}

SingleSequenceStats SingleSequenceSource::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

void SingleSequenceSource::work() {
  while (const std::shared_ptr<Job> job = next_job()) {
    if (job->expired(clock_.now())) {
      job->fail_expired();
    } else if (!job->cancelled()) {
      Run(*this, *job).run();
    }
  }
}

std::shared_ptr<SingleSequenceSource::Job> SingleSequenceSource::next_job() {
  const MutexLock lock(mutex_);
  while (waiting_.empty()) {
    if (ending_) {
      return nullptr;
    }
    changed_.wait(mutex_);
  }
  std::shared_ptr<Job> job = std::move(waiting_.front());
  waiting_.pop_front();
  ++stats_.requests;
  return job;
}

void SingleSequenceSource::forget(const Job& job) {
  const MutexLock lock(mutex_);
  std::erase_if(waiting_, [&](const std::shared_ptr<Job>& one) { return one.get() == &job; });
}

// Requests whose time ends while they wait are told so then, not when their turn comes.
void SingleSequenceSource::fail_expired() {
  const TimeNs now = clock_.now();
  std::vector<std::shared_ptr<Job>> expired;
  {
    const MutexLock lock(mutex_);
    std::erase_if(waiting_, [&](const std::shared_ptr<Job>& job) {
      const bool over = job->expired(now);
      if (over) {
        expired.push_back(job);
      }
      return over;
    });
  }
  for (const std::shared_ptr<Job>& job : expired) {
    job->fail_expired();
  }
}

}  // namespace galley::engine
