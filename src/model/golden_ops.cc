#include "model/golden_ops.h"
namespace galley::model {
std::vector<GoldenOutcome> check_golden_ops(const Safetensors&) {
  return {};
}
}  // namespace galley::model
