// The experiments on tabular laws: T3.1 and T3.6 (i) of spec runtime 3.9.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "engine/acceptance.h"
#include "engine/sampler.h"
#include "engine/speculation.h"
#include "plan/normal.h"
#include "plan/speculation_gates.h"

namespace galley::plan {
namespace {

using engine::Draw;
using engine::DrawPurpose;
using engine::RankedDraft;
using engine::StepCost;

// Streams of one seed, so that no experiment shares noise with another part of itself.
enum Stream : std::uint64_t { kTables = 1, kHistory = 2, kSchedule = 3 };

// A seed apart from `seed` and its neighbours: drafts may not share the noise of acceptance.
Seed draft_seed(Seed seed) {
  return Seed(~seed.value());
}

// Laws of a token given the one before it: [vocabulary, vocabulary], and the drafter's confidence
// in a token drafted there, [vocabulary].
struct Laws {
  std::size_t vocabulary{};
  std::vector<float> p_logits;
  std::vector<float> q_logits;
  std::vector<float> p;
  std::vector<float> q;
  std::vector<float> confidences;

  [[nodiscard]] std::span<const float> row(const std::vector<float>& table, TokenId before) const {
    return std::span(table).subspan(before * vocabulary, vocabulary);
  }
};

void append_softmax(std::span<const float> logits, std::vector<float>& out) {
  double total = 0.0;
  for (const float logit : logits) {
    total += std::exp(double{logit});
  }
  for (const float logit : logits) {
    out.push_back(static_cast<float>(std::exp(double{logit}) / total));
  }
}

// Fills what follows from the logits.
Laws with_laws(Laws laws) {
  for (TokenId before = 0; before < laws.vocabulary; ++before) {
    append_softmax(laws.row(laws.p_logits, before), laws.p);
    append_softmax(laws.row(laws.q_logits, before), laws.q);
    laws.confidences.push_back(
        static_cast<float>(ratio_acceptance(laws.row(laws.p, before), laws.row(laws.q, before))));
  }
  return laws;
}

// The drafter is good behind every other token and bad behind the rest: then a confidence tells
// much about the draft before it, which is what a wrong budget rule would leak.
Laws random_laws(std::size_t vocabulary, Random& random) {
  constexpr double kGoodNoise = 0.1;
  constexpr double kBadNoise = 2.5;
  Laws laws{.vocabulary = vocabulary};
  for (std::size_t i = 0; i < vocabulary * vocabulary; ++i) {
    const double noise = i / vocabulary % 2 == 0 ? kGoodNoise : kBadNoise;
    const double logit = next_normal(random);
    laws.p_logits.push_back(static_cast<float>(logit));
    laws.q_logits.push_back(static_cast<float>(logit + noise * next_normal(random)));
  }
  return with_laws(std::move(laws));
}

// The first draft nearly always pays; then come graphs of three drafts more, which pay when filled
// with good ones: hills behind hills, so that each search finds another budget.
StepCost staircase(std::size_t rows, std::size_t gamma) {
  constexpr std::size_t kPlateau = 3;
  constexpr double kDraftSeconds = 0.6;  // of all rows together, a step without drafts taking 1
  engine::StepCurve curve;
  const auto add = [&](std::size_t drafts) {
    curve.points.push_back(
        {.graph = static_cast<std::int64_t>(rows + drafts),
         .seconds = 1.0 + kDraftSeconds * static_cast<double>(drafts) / static_cast<double>(rows)});
  };
  add(0);
  for (std::size_t drafts = 1; drafts < rows * gamma + kPlateau; drafts += kPlateau) {
    add(drafts);
  }
  auto cost = StepCost::create(std::move(curve));
  GALLEY_ASSERT(cost);
  return *std::move(cost);
}

// A request in a batch: what it has so far, its first token the context.
struct Request {
  Seed seed;
  std::uint32_t choice{};
  std::vector<TokenId> tokens;

  [[nodiscard]] Draw draw(std::size_t ahead) const {
    return {.seed = seed,
            .choice = choice,
            .position = static_cast<std::int64_t>(tokens.size() + ahead)};
  }
};

TokenId sample(std::span<const float> logits, const Draw& draw) {
  const auto sampled = engine::sample(logits, {}, {}, draw);
  GALLEY_ASSERT(sampled);
  return sampled->token;
}

// Drafts of one step with their confidences: [rows, gamma].
struct Drafts {
  std::size_t gamma{};
  std::vector<TokenId> tokens;
  std::vector<float> confidences;
  std::vector<std::uint8_t> counts;  // [rows]

  [[nodiscard]] engine::DraftBatch batch() const {
    return {.gamma = gamma, .confidences = confidences, .drafts = counts};
  }
  [[nodiscard]] std::span<const TokenId> of(std::size_t row, std::size_t length) const {
    return std::span(tokens).subspan(row * gamma, length);
  }
};

Drafts draft(const Laws& laws,
             std::span<const Request> requests,
             std::size_t gamma,
             Acceptance acceptance) {
  Drafts drafts{.gamma = gamma};
  for (const Request& request : requests) {
    TokenId before = request.tokens.back();
    for (std::size_t k = 0; k < gamma; ++k) {
      Draw draw = request.draw(k);
      drafts.confidences.push_back(laws.confidences[before]);
      if (acceptance == Acceptance::kExact) {
        before = sample(laws.row(laws.q_logits, before), draw);
      } else {
        draw.seed = draft_seed(draw.seed);
        before = engine::draw_from(laws.row(laws.q, before),
                                   engine::uniform(draw, DrawPurpose::kDraft, k));
      }
      drafts.tokens.push_back(before);
    }
    drafts.counts.push_back(static_cast<std::uint8_t>(gamma));
  }
  return drafts;
}

// Verifies the drafts of one request.
engine::Verified verify(const Laws& laws,
                        const Request& request,
                        std::span<const TokenId> drafts,
                        Acceptance acceptance) {
  std::vector<TokenId> before{request.tokens.back()};
  before.insert(before.end(), drafts.begin(), drafts.end());
  if (acceptance == Acceptance::kExact) {
    std::vector<TokenId> targets;
    targets.reserve(before.size());
    for (std::size_t k = 0; k < before.size(); ++k) {
      targets.push_back(sample(laws.row(laws.p_logits, before[k]), request.draw(k)));
    }
    return engine::verify_exact(drafts, targets);
  }
  std::vector<float> p;
  std::vector<float> q;
  for (std::size_t k = 0; k < before.size(); ++k) {
    const auto target = laws.row(laws.p, before[k]);
    p.insert(p.end(), target.begin(), target.end());
    if (k < drafts.size()) {
      const auto drafter = laws.row(laws.q, before[k]);
      q.insert(q.end(), drafter.begin(), drafter.end());
    }
  }
  return engine::verify_ratio(
      {.draw = request.draw(0), .drafts = drafts, .vocabulary = laws.vocabulary, .p = p, .q = q});
}

// Verifies so many drafts of each request and appends what came of it.
void settle(const Laws& laws,
            const Drafts& drafts,
            std::span<const std::uint8_t> lengths,
            Acceptance acceptance,
            std::span<Request> requests) {
  for (std::size_t row = 0; row < requests.size(); ++row) {
    const auto admitted = drafts.of(row, lengths[row]);
    const engine::Verified verified = verify(laws, requests[row], admitted, acceptance);
    std::vector<TokenId>& tokens = requests[row].tokens;
    tokens.insert(tokens.end(), admitted.begin(),
                  admitted.begin() + static_cast<std::ptrdiff_t>(verified.accepted));
    tokens.push_back(verified.next);
  }
}

// Budgets of consecutive steps of one batch.
class PolicyBudget {
 public:
  PolicyBudget(BudgetPolicy policy, const StepCost& cost, std::size_t rows)
      : policy_(policy), cost_(cost), rows_(rows) {}

  // Of a step with these drafts.
  std::size_t next(const std::vector<RankedDraft>& ranked) {
    switch (policy_) {
      case BudgetPolicy::kEverything:
        return ranked.size();
      case BudgetPolicy::kLagged: {
        const auto seen = std::exchange(older_, std::exchange(newer_, ranked));
        return seen.empty() ? ranked.size() : engine::choose_budget(seen, rows_, cost_).drafts;
      }
      case BudgetPolicy::kEarlyStop:
        return same_step(ranked, engine::BudgetSearch::kFirstNonImprovement);
      case BudgetPolicy::kRetrospective:
        break;
    }
    return same_step(ranked, engine::BudgetSearch::kGlobal);
  }

 private:
  [[nodiscard]] std::size_t same_step(std::span<const RankedDraft> ranked,
                                      engine::BudgetSearch search) const {
    return engine::choose_budget(ranked, rows_, cost_, {.search = search, .off_switch = false})
        .drafts;
  }

  BudgetPolicy policy_;
  const StepCost& cost_;
  std::size_t rows_;
  std::vector<RankedDraft> older_;  // of the last step but one; empty before there is one
  std::vector<RankedDraft> newer_;  // of the last step
};

// What a step may have seen: confidences behind random tokens.
std::vector<RankedDraft> random_ranking(const Laws& laws,
                                        std::size_t rows,
                                        std::size_t gamma,
                                        Random& random) {
  Drafts drafts{.gamma = gamma, .counts = std::vector<std::uint8_t>(rows)};
  std::ranges::fill(drafts.counts, static_cast<std::uint8_t>(gamma));
  for (std::size_t i = 0; i < rows * gamma; ++i) {
    drafts.confidences.push_back(laws.confidences[random.next_below(laws.vocabulary)]);
  }
  return engine::rank(drafts.batch());
}

// The joint law of the first `tokens` tokens behind token 0, in the order of outcome_of().
std::vector<double> exact_law(const Laws& laws, std::size_t tokens) {
  struct Path {
    double chance{};
    TokenId last{};
  };
  std::vector<Path> paths{{.chance = 1.0, .last = 0}};
  for (std::size_t i = 0; i < tokens; ++i) {
    std::vector<Path> longer;
    for (const Path& path : paths) {
      const auto next = laws.row(laws.p, path.last);
      for (TokenId id = 0; id < laws.vocabulary; ++id) {
        longer.push_back({.chance = path.chance * double{next[id]}, .last = id});
      }
    }
    paths = std::move(longer);
  }
  std::vector<double> law;
  law.reserve(paths.size());
  for (const Path& path : paths) {
    law.push_back(path.chance);
  }
  return law;
}

std::size_t outcome_of(std::span<const TokenId> tokens, std::size_t vocabulary) {
  std::size_t outcome = 0;
  for (const TokenId token : tokens) {
    outcome = outcome * vocabulary + token;
  }
  return outcome;
}

struct Trials {
  std::size_t rows{};
  std::size_t gamma{};
  std::size_t tokens{};  // that the law is about
  std::int64_t draws{};
  Seed seed;
};

// Steps batch after batch until each row has its tokens, and counts them.
std::pair<LawFigures, std::vector<std::int64_t>> run_trials(const Laws& laws,
                                                            const StepCost& cost,
                                                            const Trials& trials,
                                                            BudgetPolicy policy,
                                                            Acceptance acceptance) {
  const std::vector<double> law = exact_law(laws, trials.tokens);
  std::vector<std::int64_t> seen(law.size());
  Random history(trials.seed, kHistory);
  std::int64_t drafted = 0;
  std::int64_t verified = 0;
  const auto batches = static_cast<std::uint64_t>(trials.draws) / trials.rows;
  std::vector<Request> requests(trials.rows);
  for (std::uint64_t batch = 0; batch < batches; ++batch) {
    for (std::size_t row = 0; row < trials.rows; ++row) {
      requests[row] = {.seed = Seed(trials.seed.value() + batch),
                       .choice = static_cast<std::uint32_t>(row),
                       .tokens = {0}};
    }
    PolicyBudget budget(policy, cost, trials.rows);
    if (policy == BudgetPolicy::kLagged) {
      budget.next(random_ranking(laws, trials.rows, trials.gamma, history));
      budget.next(random_ranking(laws, trials.rows, trials.gamma, history));
    }
    const auto unfinished = [&](const Request& request) {
      return request.tokens.size() <= trials.tokens;
    };
    while (std::ranges::any_of(requests, unfinished)) {
      const Drafts drafts = draft(laws, requests, trials.gamma, acceptance);
      const auto ranked = engine::rank(drafts.batch());
      const std::size_t count = budget.next(ranked);
      settle(laws, drafts, engine::allocate(ranked, trials.rows, count), acceptance, requests);
      drafted += static_cast<std::int64_t>(ranked.size());
      verified += static_cast<std::int64_t>(count);
    }
    for (const Request& request : requests) {
      ++seen[outcome_of(std::span(request.tokens).subspan(1, trials.tokens), laws.vocabulary)];
    }
  }
  LawFigures figures{
      .draws = static_cast<std::int64_t>(batches * trials.rows),
      .outcomes = law.size(),
      .verified_share = static_cast<double>(verified) / static_cast<double>(drafted)};
  const auto draws = static_cast<double>(figures.draws);
  for (std::size_t i = 0; i < law.size(); ++i) {
    figures.total_variation += std::fabs(static_cast<double>(seen[i]) / draws - law[i]) / 2;
    figures.standard_error += std::sqrt(law[i] * (1.0 - law[i]) / draws) / 2;
  }
  return {figures, std::move(seen)};
}

// A batch of compare_exact: the requests, their plain answers, and what is tried on them.
class ExactComparison {
 public:
  static constexpr std::size_t kGamma = 5;
  static constexpr std::size_t kTokens = 40;

  ExactComparison(std::size_t index, Seed seed)
      : random_(seed, kSchedule + index),
        laws_(random_laws(4 + random_.next_below(5), random_)),
        rows_(1 + static_cast<std::size_t>(random_.next_below(8))),
        cost_(staircase(rows_, kGamma)) {
    for (std::size_t row = 0; row < rows_; ++row) {
      requests_.push_back({.seed = Seed(random_.next_u64()),
                           .choice = static_cast<std::uint32_t>(random_.next_below(3)),
                           .tokens = {0}});
      plain_.push_back(requests_.back());
      while (plain_.back().tokens.size() <= kTokens) {
        Request& request = plain_.back();
        request.tokens.push_back(
            sample(laws_.row(laws_.p_logits, request.tokens.back()), request.draw(0)));
      }
    }
  }

  void run(ExactFigures& figures) {
    for (std::size_t length = 0; length <= kGamma; ++length) {
      decode(figures, [&](const std::vector<RankedDraft>&) {
        return std::vector<std::uint8_t>(rows_, static_cast<std::uint8_t>(length));
      });
    }
    // Any lengths at all, prefixes of no ranking.
    decode(figures, [&](const std::vector<RankedDraft>&) {
      std::vector<std::uint8_t> lengths(rows_);
      for (std::uint8_t& length : lengths) {
        length = static_cast<std::uint8_t>(random_.next_below(kGamma + 1));
      }
      return lengths;
    });
    decode(figures, [&](const std::vector<RankedDraft>& ranked) {
      return engine::allocate(ranked, rows_, random_.next_below(ranked.size() + 1));
    });
    for (const BudgetPolicy policy : kBudgetPolicies) {
      PolicyBudget budget(policy, cost_, rows_);
      decode(figures, [&](const std::vector<RankedDraft>& ranked) {
        return engine::allocate(ranked, rows_, budget.next(ranked));
      });
    }
    alone_by_turns(figures);
  }

 private:
  template <class Lengths>
  void decode(ExactFigures& figures, const Lengths& lengths) {
    std::vector<Request> requests = requests_;
    while (!finished(requests)) {
      const Drafts drafts = draft(laws_, requests, kGamma, Acceptance::kExact);
      settle(laws_, drafts, lengths(engine::rank(drafts.batch())), Acceptance::kExact, requests);
    }
    compare(requests, figures);
  }

  // Each step runs one row, any: what preemption and other schedules come to.
  void alone_by_turns(ExactFigures& figures) {
    std::vector<Request> requests = requests_;
    while (!finished(requests)) {
      const std::span<Request> one(&requests[random_.next_below(rows_)], 1);
      const Drafts drafts = draft(laws_, one, kGamma, Acceptance::kExact);
      const std::vector lengths{static_cast<std::uint8_t>(random_.next_below(kGamma + 1))};
      settle(laws_, drafts, lengths, Acceptance::kExact, one);
    }
    compare(requests, figures);
  }

  [[nodiscard]] static bool finished(std::span<const Request> requests) {
    return std::ranges::all_of(
        requests, [](const Request& request) { return request.tokens.size() > kTokens; });
  }

  void compare(std::span<const Request> requests, ExactFigures& figures) const {
    for (std::size_t row = 0; row < rows_; ++row) {
      ++figures.runs;
      for (std::size_t i = 1; i <= kTokens; ++i) {
        ++figures.tokens;
        figures.wrong += requests[row].tokens[i] == plain_[row].tokens[i] ? 0 : 1;
      }
    }
  }

  Random random_;
  Laws laws_;
  std::size_t rows_;
  StepCost cost_;
  std::vector<Request> requests_;  // before their first step
  std::vector<Request> plain_;     // decoded alone, without drafts
};

}  // namespace

std::string_view name(BudgetPolicy policy) {
  switch (policy) {
    case BudgetPolicy::kEverything:
      return "everything";
    case BudgetPolicy::kLagged:
      return "lagged";
    case BudgetPolicy::kEarlyStop:
      return "early stop";
    case BudgetPolicy::kRetrospective:
      break;
  }
  return "retrospective";
}

LawFigures measure_law(const LawExperiment& experiment,
                       BudgetPolicy policy,
                       Acceptance acceptance) {
  constexpr std::size_t kTokens = 2;
  Random tables(experiment.seed, kTables);
  const Laws laws = random_laws(experiment.vocabulary, tables);
  return run_trials(laws, staircase(experiment.rows, experiment.gamma),
                    {.rows = experiment.rows,
                     .gamma = experiment.gamma,
                     .tokens = kTokens,
                     .draws = experiment.draws,
                     .seed = experiment.seed},
                    policy, acceptance)
      .first;
}

ExampleFigures paper_example(BudgetPolicy policy,
                             Acceptance acceptance,
                             std::int64_t draws,
                             Seed seed) {
  // Token 0 is the prompt. Behind token 1 target and drafter agree, behind token 2 never.
  constexpr std::size_t kVocabulary = 3;
  constexpr float kNever = -200.0F;
  const auto log = [](double chance) { return static_cast<float>(std::log(chance)); };
  const Laws laws = with_laws({.vocabulary = kVocabulary,
                               .p_logits = {kNever, log(0.7), log(0.3),  //
                                            kNever, log(0.5), log(0.5),  //
                                            kNever, 0.0F, kNever},
                               .q_logits = {kNever, log(0.5), log(0.5),  //
                                            kNever, log(0.5), log(0.5),  //
                                            kNever, kNever, 0.0F}});
  // Behind token 1 a step with drafts gives 2.6 tokens, behind token 2 1.8: it pays there only.
  const auto cost =
      StepCost::create({.points = {{.graph = 1, .seconds = 1.0}, {.graph = 3, .seconds = 2.2}}});
  GALLEY_ASSERT(cost);
  auto [law, seen] =
      run_trials(laws, *cost, {.rows = 1, .gamma = 2, .tokens = 1, .draws = draws, .seed = seed},
                 policy, acceptance);
  return {.first_share = static_cast<double>(seen[1]) / static_cast<double>(law.draws), .law = law};
}

LawFigures repeated_drafts(std::int64_t draws, Seed seed) {
  constexpr std::size_t kGamma = 4;
  const auto log = [](double chance) { return static_cast<float>(std::log(chance)); };
  Laws laws = with_laws({.vocabulary = 2,
                         .p_logits = {log(0.7), log(0.3), log(0.7), log(0.3)},
                         .q_logits = {0.0F, 0.0F, 0.0F, 0.0F}});
  // Only four sure ones after each other promise the 4.1 tokens that a step with drafts must give.
  laws.confidences = {0.95F, 0.05F};
  const auto cost = StepCost::create(
      {.points = {{.graph = 1, .seconds = 1.0}, {.graph = 1 + kGamma, .seconds = 4.1}}});
  GALLEY_ASSERT(cost);
  return run_trials(laws, *cost,
                    {.rows = 1, .gamma = kGamma, .tokens = 3, .draws = draws, .seed = seed},
                    BudgetPolicy::kLagged, Acceptance::kRatio)
      .first;
}

ExactFigures compare_exact(std::size_t batches, Seed seed) {
  ExactFigures figures;
  for (std::size_t batch = 0; batch < batches; ++batch) {
    ExactComparison(batch, seed).run(figures);
  }
  return figures;
}

}  // namespace galley::plan
