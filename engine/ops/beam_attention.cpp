// The CPU kernel of boundgen::beam_attention. Shapes and meaning: beam_attention.py. Inputs are read, the output is
// fresh and contiguous. One item of work is a prompt and a key head: the prompt's keys and values of that head are
// read once for all its beams, as one product each; suffixes are a few dot products a row. All in float32.
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

namespace {

struct Inputs {
  const at::Tensor &q, &k, &v, &prompt_k, &prompt_v, &suffix_k, &suffix_v, &ancestors;
  int64_t beams, group, slots, rows;
};

at::Tensor wide(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

// The rows of one prompt and key head: q[W, G, D] in float32, out[W, G, D] a view of the result.
void attend(const Inputs& in, int64_t prompt, int64_t head, int64_t start, int64_t stop, const at::Tensor& out) {
  const int64_t first = prompt * in.beams, width = in.q.size(2), group = in.group, own = in.slots + 1;
  // `wide` may give the input itself, so nothing of it is changed in place.
  const at::Tensor q = wide(in.q.narrow(0, first, in.beams).narrow(1, head * group, group)).mul(1.0 / std::sqrt(double(width)));
  const at::Tensor query = q.view({in.beams * group, width});
  at::Tensor scores = at::matmul(query, wide(in.prompt_k.narrow(0, start, stop - start).select(1, head)).t());

  // A row's own keys and values, its suffix and the new one, side by side.
  const at::Tensor new_k = wide(in.k.narrow(0, first, in.beams).select(1, head));
  const at::Tensor new_v = wide(in.v.narrow(0, first, in.beams).select(1, head));
  const at::Tensor old_k = wide(in.suffix_k.narrow(1, first, in.beams).select(2, head));
  const at::Tensor old_v = wide(in.suffix_v.narrow(1, first, in.beams).select(2, head));
  const float *nk = new_k.const_data_ptr<float>(), *nv = new_v.const_data_ptr<float>();
  const float *ok = old_k.const_data_ptr<float>(), *ov = old_v.const_data_ptr<float>();
  const int64_t* ancestors = in.ancestors.const_data_ptr<int64_t>();
  // Slot j of beam w, or its own new token where j is the last; null where the slot is unused.
  auto entry = [&](const float* fresh, const float* stored, int64_t w, int64_t j) -> const float* {
    if (j == in.slots) return fresh + w * width;
    const int64_t row = ancestors[j * in.rows + first + w];
    return row < 0 ? nullptr : stored + (j * in.beams + row - first) * width;
  };

  at::Tensor mine = at::full({in.beams * group, own}, -std::numeric_limits<float>::infinity(), q.options());
  float* m = mine.data_ptr<float>();
  const float* x = query.const_data_ptr<float>();
  for (int64_t w = 0; w < in.beams; ++w) {
    for (int64_t j = 0; j < own; ++j) {
      const float* key = entry(nk, ok, w, j);
      if (key == nullptr) continue;
      for (int64_t g = 0; g < group; ++g) {
        float sum = 0;
        for (int64_t d = 0; d < width; ++d) sum += x[(w * group + g) * width + d] * key[d];
        m[(w * group + g) * own + j] = sum;
      }
    }
  }

  const at::Tensor top = at::maximum(scores.amax(1, true), mine.amax(1, true));
  scores.sub_(top).exp_();
  mine.sub_(top).exp_();
  const at::Tensor total = scores.sum(1, true).add_(mine.sum(1, true));
  at::Tensor sum = at::matmul(scores, wide(in.prompt_v.narrow(0, start, stop - start).select(1, head)));
  float* y = sum.data_ptr<float>();
  m = mine.data_ptr<float>();
  for (int64_t w = 0; w < in.beams; ++w) {
    for (int64_t j = 0; j < own; ++j) {
      const float* value = entry(nv, ov, w, j);
      if (value == nullptr) continue;
      for (int64_t g = 0; g < group; ++g) {
        const float weight = m[(w * group + g) * own + j];
        for (int64_t d = 0; d < width; ++d) y[(w * group + g) * width + d] += weight * value[d];
      }
    }
  }
  out.copy_(sum.div_(total).view({in.beams, group, width}));
}

at::Tensor beam_attention_cpu(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& prompt_k,
    const at::Tensor& prompt_v, const at::Tensor& suffix_k, const at::Tensor& suffix_v,
    const at::Tensor& ancestors, const at::Tensor& cu_seqlens, int64_t) {
  at::Tensor out = at::empty_like(q, at::MemoryFormat::Contiguous);
  const at::Tensor rows_by_slot = ancestors.contiguous();
  const int32_t* start = cu_seqlens.const_data_ptr<int32_t>();
  const int64_t prompts = cu_seqlens.numel() - 1, heads = k.size(1), rows = q.size(0);
  const Inputs in{q, k, v, prompt_k, prompt_v, suffix_k, suffix_v, rows_by_slot,
                  rows / prompts, q.size(1) / heads, ancestors.size(0), rows};
  at::parallel_for(0, prompts * heads, 1, [&](int64_t begin, int64_t end) {
    at::AutoDispatchBelowADInplaceOrView below;  // a pool thread does not know that this is inference
    for (int64_t item = begin; item < end; ++item) {
      const int64_t s = item / heads, h = item % heads;
      attend(in, s, h, start[s], start[s + 1], out.narrow(0, s * in.beams, in.beams).narrow(1, h * in.group, in.group));
    }
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(boundgen, CPU, m) { m.impl("beam_attention", beam_attention_cpu); }
