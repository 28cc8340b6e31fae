#include "kernels/experts.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/ceil_div.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/quantise.h"
#include "kernels/rounding.h"

namespace galley::kernels {

void Experts::run(const ExpertsArgs& args) {
  const float* x = args.x;
  if (args.activation_block > 0 && args.shared.w1.quantised()) {
    quantised_.assign(x, x + args.rows * args.hidden);
    pool_.run(args.rows, [&](std::size_t t) {
      reference::fake_quantise_fp8({quantised_.data() + t * args.hidden, args.hidden},
                                   std::min(args.activation_block, args.hidden));
    });
    x = quantised_.data();
  }
  gather(args, x);
  input_.assign(pool_, product_.form(), rows_, args.hidden);
  hidden_.resize(rows_.size() * args.intermediate);
  list_tasks(args.intermediate);
  pool_.run(tasks_.size(), [&](std::size_t i) { expand(args, tasks_[i]); });
  pool_.run(rows_.size(), [&](std::size_t i) {
    if (rows_[i] == nullptr) {
      return;
    }
    float* const h = hidden_.data() + i * args.intermediate;
    if (args.activation_block > 0 && args.shared.w2.quantised()) {
      reference::fake_quantise_fp8({h, args.intermediate},
                                   std::min(args.activation_block, args.intermediate));
    }
    rows_[i] = h;
  });
  input_.assign(pool_, product_.form(), rows_, args.intermediate);
  const std::size_t slots = args.chosen + 1;
  partial_.resize(args.rows * slots * args.hidden);
  list_tasks(args.hidden);
  pool_.run(tasks_.size(), [&](std::size_t i) { contract(args, tasks_[i]); });
  // Routed experts in ascending order, then the shared one.
  pool_.run(args.rows, [&](std::size_t t) {
    const std::span<float> y(args.y + t * args.hidden, args.hidden);
    std::ranges::fill(y, 0.0F);
    for (std::size_t s = 0; s < slots; ++s) {
      const float* const part = partial_.data() + (t * slots + s) * args.hidden;
      for (std::size_t c = 0; c < args.hidden; ++c) {
        y[c] += part[c];
      }
    }
    round_all(y, args.round);
  });
}

// Which rows of `x` each expert computes.
void Experts::gather(const ExpertsArgs& args, const float* x) {
  jobs_.resize(args.experts.size() + 1);
  for (std::size_t e = 0; e < jobs_.size(); ++e) {
    jobs_[e].uses.clear();
    jobs_[e].expert = e < args.experts.size() ? &args.experts[e] : &args.shared;
  }
  for (std::size_t t = 0; t < args.rows; ++t) {
    for (std::size_t s = 0; s < args.chosen; ++s) {
      const std::size_t at = t * args.chosen + s;
      jobs_[static_cast<std::size_t>(args.expert_ids[at])].uses.push_back({t, s, args.weights[at]});
    }
    jobs_.back().uses.push_back({t, args.chosen, 1.0F});
  }
  rows_.clear();
  for (Job& job : jobs_) {
    job.first = rows_.size();
    for (const Job::Use& use : job.uses) {
      rows_.push_back(x + use.row * args.hidden);
    }
    // Each expert's rows begin where a product may begin.
    rows_.resize(ceil_div(rows_.size(), kGroupRows) * kGroupRows, nullptr);
  }
}

void Experts::list_tasks(std::size_t outputs) {
  tasks_.clear();
  // Experts are many: each may come in few tasks.
  const std::size_t width =
      Product::outputs_per_task(outputs * jobs_.size(), rows_.size(), pool_.threads());
  for (const Job& job : jobs_) {
    for (std::size_t row = 0; row < job.uses.size(); row += kRowsMax) {
      for (std::size_t first = 0; first < outputs; first += width) {
        tasks_.push_back({&job, first, std::min(width, outputs - first), row,
                          std::min(kRowsMax, job.uses.size() - row)});
      }
    }
  }
}

// hidden = swiglu(w1 x, w3 x) * weight.
void Experts::expand(const ExpertsArgs& args, const Task& task) {
  const std::size_t first_row = task.job->first + task.row;
  thread_local std::vector<float> gates;
  gates.resize(task.rows * task.count);
  product_.for_outputs(task.job->expert->w1, task.first, task.count, input_, first_row, task.rows,
                       [&](std::size_t n, std::size_t at, std::span<const float> values) {
                         const std::span<float> gate(gates.data() + n * task.count + at,
                                                     values.size());
                         std::ranges::copy(values, gate.begin());
                         round_all(gate, args.round);
                       });
  product_.for_outputs(task.job->expert->w3, task.first, task.count, input_, first_row, task.rows,
                       [&](std::size_t n, std::size_t at, std::span<const float> values) {
                         std::array<float, Product::kOutputs> copy{};
                         const std::span<float> up(copy.data(), values.size());
                         std::ranges::copy(values, up.begin());
                         round_all(up, args.round);
                         const std::span<float> h(
                             hidden_.data() + (first_row + n) * args.intermediate + task.first + at,
                             up.size());
                         swiglu({.gate = gates.data() + n * task.count + at,
                                 .up = up.data(),
                                 .count = up.size(),
                                 .limit = args.limit,
                                 .weight = task.job->uses[task.row + n].weight,
                                 .h = h.data()});
                         round_all(h, args.round);
                       });
}

void Experts::swiglu(const SwigluRow& row) const {
  if (kernels_ != nullptr) {
    return kernels_->swiglu(row);
  }
  reference::swiglu({row.gate, row.count}, {row.up, row.count}, row.limit, row.weight,
                    {row.h, row.count});
}

// w2 hidden, to the rows' slots.
void Experts::contract(const ExpertsArgs& args, const Task& task) {
  product_.for_outputs(
      task.job->expert->w2, task.first, task.count, input_, task.job->first + task.row, task.rows,
      [&](std::size_t n, std::size_t at, std::span<const float> values) {
        const Job::Use& use = task.job->uses[task.row + n];
        const std::span<float> out(partial_.data() +
                                       (use.row * (args.chosen + 1) + use.slot) * args.hidden +
                                       task.first + at,
                                   values.size());
        std::ranges::copy(values, out.begin());
        round_all(out, args.round);
      });
}

}  // namespace galley::kernels
