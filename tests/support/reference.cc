#include "tests/support/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>

namespace quire::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Keeps tokens in ascending order of (key, id) until `enough(count, probability)`; renormalises.
void keep(Doubles& p, const Doubles& key, const std::function<bool(int, double)>& enough) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key[a] < key[b]; });
  Doubles kept(p.size(), 0.0);
  double sum = 0.0;
  int count = 0;
  for (const std::size_t i : order) {
    kept[i] = p[i];
    sum += p[i];
    if (enough(++count, sum)) break;
  }
  for (std::size_t i = 0; i < p.size(); ++i) p[i] = kept[i] / sum;
}

Doubles softmax(const Doubles& x) {
  const double top = *std::max_element(x.begin(), x.end());
  Doubles p;
  for (const double v : x) p.push_back(std::exp(v - top));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= sum;
  return p;
}

Doubles adjusted_logits(const Floats& logits, const SampleRow& row) {
  Doubles x(logits.begin(), logits.end());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (row.mask != nullptr && (row.mask[i / 32] >> (i % 32) & 1u) == 0) x[i] = -kInfinity;
    if (row.num_allowed > 0 && i >= static_cast<std::size_t>(row.num_allowed)) x[i] = -kInfinity;
  }
  const auto at = [&](std::int32_t token) {
    return token >= 0 && static_cast<std::size_t>(token) < x.size() ? &x[token] : nullptr;
  };
  for (int i = 0; i < row.num_biases; ++i) {
    if (double* v = at(row.biases[i].token)) *v += static_cast<double>(row.biases[i].bias);
  }
  for (int i = 0; i < row.num_counts; ++i) {
    double* v = at(row.counts[i].token);
    if (v == nullptr) continue;
    *v = *v > 0 ? *v / row.repetition_penalty : *v * row.repetition_penalty;
    if (row.counts[i].in_output > 0) *v -= row.presence_penalty;
    *v -= static_cast<double>(row.frequency_penalty) * row.counts[i].in_output;
  }
  for (double& v : x) v /= row.temperature;
  return x;
}

}  // namespace

Doubles rms_norm(const Floats& x, const Floats& weight, double eps) {
  const std::size_t width = weight.size();
  Doubles out;
  for (std::size_t r = 0; r < x.size() / width; ++r) {
    double sum = 0.0;
    for (std::size_t i = 0; i < width; ++i) sum += double{x[r * width + i]} * x[r * width + i];
    const double root = std::sqrt(sum / static_cast<double>(width) + eps);
    for (std::size_t i = 0; i < width; ++i) out.push_back(x[r * width + i] / root * weight[i]);
  }
  return out;
}

Doubles rope(const Floats& x, const std::vector<std::int32_t>& positions, const Floats& inv_freq, int heads, int head_size,
             double magnitude, RopeKind kind) {
  Doubles out(x.begin(), x.end());
  const int half = static_cast<int>(inv_freq.size());
  for (std::size_t t = 0; t < positions.size(); ++t) {
    for (int h = 0; h < heads; ++h) {
      double* head = out.data() + (t * heads + h) * head_size;
      for (int i = 0; i < half; ++i) {
        const double angle = double{inv_freq[i]} * positions[t];
        double& a = head[kind == RopeKind::kHalfSplit ? i : 2 * i];
        double& b = head[kind == RopeKind::kHalfSplit ? i + half : 2 * i + 1];
        const double cos = std::cos(angle) * magnitude, sin = std::sin(angle) * magnitude;
        const double rotated_a = a * cos - b * sin, rotated_b = b * cos + a * sin;
        a = rotated_a;
        b = rotated_b;
      }
    }
  }
  return out;
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

double gelu_tanh(double x) { return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x))); }

Doubles attention(const AttentionInput& in) {
  const int rows = static_cast<int>(in.q.size()) / (in.num_heads * in.head_size);
  const auto size = static_cast<std::size_t>(in.head_size);
  Doubles out;
  for (int row = 0; row < rows; ++row) {
    const int position = in.num_positions - rows + row;
    const int first = in.window > 0 ? std::max(0, position - in.window + 1) : 0;
    for (int head = 0; head < in.num_heads; ++head) {
      const int kv_head = head / (in.num_heads / in.num_kv_heads);
      const auto kv_row = [&](int j) { return (static_cast<std::size_t>(j) * in.num_kv_heads + kv_head) * size; };
      Doubles scores;
      for (int j = first; j <= position; ++j) {
        double score = 0.0;
        for (std::size_t d = 0; d < size; ++d) {
          score += double{in.q[(static_cast<std::size_t>(row) * in.num_heads + head) * size + d]} * in.k[kv_row(j) + d];
        }
        score *= in.scale;
        scores.push_back(in.softcap > 0 ? in.softcap * std::tanh(score / in.softcap) : score);
      }
      const Doubles p = scores.empty() ? Doubles{} : softmax(scores);
      for (std::size_t d = 0; d < size; ++d) {
        double sum = 0.0;
        for (int j = first; j <= position; ++j) sum += p[j - first] * in.v[kv_row(j) + d];
        out.push_back(sum);
      }
    }
  }
  return out;
}

Doubles log_softmax(const Floats& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(x - top);
  Doubles out;
  for (const float x : logits) out.push_back(x - top - std::log(sum));
  return out;
}

Doubles sampling_distribution(const Floats& logits, const SampleRow& row) {
  const Doubles x = adjusted_logits(logits, row);
  Doubles p = softmax(x);
  Doubles unlikeliness;
  for (const double v : x) unlikeliness.push_back(-v);
  if (row.top_k > 0) keep(p, unlikeliness, [&](int count, double) { return count >= row.top_k; });
  if (row.typical_p < 1.0f) {
    double entropy = 0.0;
    for (const double v : p) entropy -= v > 0 ? v * std::log(v) : 0.0;
    Doubles distance;
    for (const double v : p) distance.push_back(v > 0 ? std::abs(-std::log(v) - entropy) : kInfinity);
    keep(p, distance, [&](int, double sum) { return sum >= row.typical_p; });
  }
  if (row.top_p < 1.0f) keep(p, unlikeliness, [&](int, double sum) { return sum >= row.top_p; });
  if (row.min_p > 0.0f) {
    const double least = *std::max_element(p.begin(), p.end()) * row.min_p;
    for (double& v : p) v = v < least ? 0.0 : v;
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& v : p) v /= sum;
  }
  return p;
}

}  // namespace quire::reference
