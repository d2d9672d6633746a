// Kernels of boundgen::packed_attention that a compiled package calls: no Python, so no interpreter lock.
// Shapes and meaning: packed_attention.py. Inputs are read, the output is fresh and contiguous.
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/library.h>

namespace {

// x[T, H, D] -> one sample's [1, H, L, D], without a copy.
at::Tensor sample_of(const at::Tensor& x, int64_t start, int64_t stop) {
  return x.narrow(0, start, stop - start).transpose(0, 1).unsqueeze(0);
}

void attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out) {
  out.copy_(std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, /*is_causal=*/true)));
}

at::Tensor packed_attention_cpu(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cu_seqlens, int64_t) {
  at::Tensor out = at::empty_like(q, at::MemoryFormat::Contiguous);
  const int32_t* start = cu_seqlens.const_data_ptr<int32_t>();
  const int64_t num_samples = cu_seqlens.numel() - 1;
  const int64_t num_groups = k.size(1), group = q.size(1) / k.size(1);
  if (num_samples < 4 * at::get_num_threads()) {  // few samples: the threads share each one
    for (int64_t s = 0; s < num_samples; ++s) {
      attend(sample_of(q, start[s], start[s + 1]), sample_of(k, start[s], start[s + 1]),
             sample_of(v, start[s], start[s + 1]), sample_of(out, start[s], start[s + 1]));
    }
    return out;
  }
  // Many samples: each thread takes whole ones, with no barrier between them. Samples run fastest, so that
  // every thread gets its share of long and short ones however the lengths are ordered.
  at::parallel_for(0, num_groups * num_samples, 1, [&](int64_t begin, int64_t end) {
    at::AutoDispatchBelowADInplaceOrView below;  // a pool thread does not know that this is inference
    for (int64_t item = begin; item < end; ++item) {
      const int64_t g = item / num_samples, s = item % num_samples;
      auto heads = [&](const at::Tensor& x, int64_t count) {
        return sample_of(x, start[s], start[s + 1]).narrow(1, g * count, count);
      };
      attend(heads(q, group), heads(k, 1), heads(v, 1), heads(out, group));
    }
  });
  return out;
}

// float32 and odd head widths: what the flash kernel does not take. Waits for the device; not for serving.
at::Tensor packed_attention_by_sample(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cu_seqlens) {
  at::Tensor out = at::empty_like(q, at::MemoryFormat::Contiguous);
  const at::Tensor borders = cu_seqlens.cpu();
  const int32_t* start = borders.const_data_ptr<int32_t>();
  for (int64_t s = 0; s + 1 < borders.numel(); ++s) {
    sample_of(out, start[s], start[s + 1])
        .copy_(at::scaled_dot_product_attention(
            sample_of(q, start[s], start[s + 1]), sample_of(k, start[s], start[s + 1]),
            sample_of(v, start[s], start[s + 1]), std::nullopt, 0.0, /*is_causal=*/true, std::nullopt,
            /*enable_gqa=*/true));
  }
  return out;
}

at::Tensor packed_attention_cuda(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cu_seqlens,
    int64_t max_seqlen) {
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  if (!half || q.size(2) % 8 != 0 || q.size(2) > 256) {
    return packed_attention_by_sample(q, k, v, cu_seqlens);
  }
  auto result = at::_flash_attention_forward(
      q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, 0.0, /*is_causal=*/true,
      /*return_debug_mask=*/false);
  return std::get<0>(result);
}

}  // namespace

TORCH_LIBRARY_IMPL(boundgen, CPU, m) { m.impl("packed_attention", packed_attention_cpu); }
TORCH_LIBRARY_IMPL(boundgen, CUDA, m) { m.impl("packed_attention", packed_attention_cuda); }
