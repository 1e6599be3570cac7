// The cells of LSTMs and GRUs, which have operators of their own on CUDA: here they are made of simpler operators.
// Names of gates and their order are those of PyTorch's documentation of nn.LSTM and nn.GRU.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace emulated {
namespace {

using at::Tensor;
using Bias = std::optional<Tensor>;

Tensor with(const Tensor &gates, const Bias &bias) { return bias && bias->defined() ? gates + *bias : gates; }

// Returns the hidden state, the state of the cell, and nothing in place of what CUDA's operator keeps for its gradient.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor &of_input, const Tensor &of_hidden, const Tensor &cell,
                                             const Bias &input_bias, const Bias &hidden_bias) {
  auto gates = (with(of_input, input_bias) + with(of_hidden, hidden_bias)).chunk(4, 1);
  auto next = gates[1].sigmoid() * cell + gates[0].sigmoid() * gates[2].tanh();
  auto hidden = gates[3].sigmoid() * next.tanh();
  return {hidden, next, Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor &of_input, const Tensor &of_hidden, const Tensor &hidden,
                                    const Bias &input_bias, const Bias &hidden_bias) {
  auto input = with(of_input, input_bias).chunk(3, 1), before = with(of_hidden, hidden_bias).chunk(3, 1);
  auto reset = (input[0] + before[0]).sigmoid(), update = (input[1] + before[1]).sigmoid();
  auto proposed = (input[2] + reset * before[2]).tanh();
  return {proposed + update * (hidden - proposed), Tensor()};
}

void add(torch::Library &m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) { add(m); }
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m) { add(m); }

} // namespace
} // namespace emulated
