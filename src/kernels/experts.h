#pragma once

#include <cstddef>
#include <vector>

#include "base/worker_pool.h"
#include "kernels/device.h"
#include "kernels/matmul_input.h"
#include "kernels/product.h"
#include "kernels/row_kernels.h"

namespace galley::kernels {

// Stream::experts on a CPU: y = sum of w2 . bf16(swiglu(w1 x, w3 x) * weight) over a row's experts
// (spec model 6). Rows are gathered by expert, so that each expert's weights pass through the
// caches once. Keeps its memory from call to call.
class Experts {
 public:
  // `kernels` null: the reference.
  Experts(WorkerPool& pool, const Product& product, const RowKernels* kernels)
      : pool_(pool), product_(product), kernels_(kernels) {}
  void run(const ExpertsArgs& args);

 private:
  // The rows of a batch that one expert computes.
  struct Job {
    struct Use {
      std::size_t row;
      std::size_t slot;  // of the row's chosen experts; the shared one comes last
      float weight;
    };
    const ExpertWeights* expert = nullptr;
    std::vector<Use> uses;
    std::size_t first = 0;  // of its rows among those of all experts, a multiple of 16
  };

  // One stretch of outputs of up to kRowsMax rows of an expert.
  struct Task {
    const Job* job;
    std::size_t first;
    std::size_t count;
    std::size_t row;
    std::size_t rows;
  };

  void gather(const ExpertsArgs& args, const float* x);
  void list_tasks(std::size_t outputs);
  void expand(const ExpertsArgs& args, const Task& task);
  void contract(const ExpertsArgs& args, const Task& task);
  void swiglu(const SwigluRow& row) const;

  WorkerPool& pool_;
  const Product& product_;
  const RowKernels* kernels_;
  std::vector<Job> jobs_;           // one an expert, the shared one last
  std::vector<const float*> rows_;  // gathered by expert; null between two experts' rows
  std::vector<Task> tasks_;
  MatmulInput input_;
  std::vector<float> quantised_;  // [rows, H]
  std::vector<float> hidden_;     // [gathered rows, intermediate]
  std::vector<float> partial_;    // [rows, slots, H]
};

}  // namespace galley::kernels
