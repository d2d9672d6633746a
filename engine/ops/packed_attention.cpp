// Kernels of boundgen::packed_attention that a compiled package calls: no Python, so no interpreter lock.
// Shapes and meaning: packed_attention.py. Inputs are read, the output is fresh and contiguous.
//
// What a segment attends to beside itself is a second attention, without a mask; the two are joined by their
// log-sum-exps l: out = out + (out' - out) w, w = 1 / (1 + e^(l - l')).
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <tuple>

namespace {

using MaybeTensor = std::optional<at::Tensor>;

// x[T, H, D] -> the rows [1, H, L, D] of one segment, without a copy.
at::Tensor rows_of(const at::Tensor& x, int64_t start, int64_t stop) {
  return x.narrow(0, start, stop - start).transpose(0, 1).unsqueeze(0);
}

// Borders and prefixes of the segments, on the CPU.
struct Segments {
  const int32_t* start;
  const int32_t* prefix;  // (parent, rows of the constant prefix) of each; null: none has any
  int64_t count;

  Segments(const at::Tensor& cu_seqlens, const MaybeTensor& prefixes)
      : start(cu_seqlens.const_data_ptr<int32_t>()), prefix(nullptr), count(cu_seqlens.numel() - 1) {
    if (prefixes && prefixes->size(0) == count) {
      prefix = prefixes->const_data_ptr<int32_t>();
    }
  }
  int64_t parent(int64_t s) const { return prefix ? prefix[2 * s] : -1; }
  int64_t constant(int64_t s) const { return prefix ? prefix[2 * s + 1] : 0; }
  bool has_prefix(int64_t s) const { return parent(s) >= 0 || constant(s) > 0; }
  bool same_prefix(int64_t s, int64_t t) const {
    return parent(s) == parent(t) && constant(s) == constant(t);
  }

  // What segment s, which has a prefix, attends to before itself: [1, H, P, D]
  at::Tensor prefix_rows(int64_t s, const at::Tensor& x, const MaybeTensor& before) const {
    const int64_t p = parent(s), n = constant(s);
    if (n == 0) {
      return rows_of(x, start[p], start[p + 1]);
    }
    return p < 0 ? rows_of(*before, 0, n)
                 : at::cat({rows_of(*before, 0, n), rows_of(x, start[p], start[p + 1])}, 2);
  }
};

using Attended = std::tuple<at::Tensor, at::Tensor>;  // out[1, H, L, D] and log-sum-exp[1, H, L]

Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool is_causal) {
  return at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal);
}

// Joins what rows [first, ..) of out[T, H, D] and lse[T, H] hold with a second part of their attention.
void join(const at::Tensor& out, const at::Tensor& lse, int64_t first, const Attended& part) {
  const at::Tensor more = std::get<0>(part).squeeze(0).transpose(0, 1).contiguous();
  const at::Tensor more_lse = std::get<1>(part).squeeze(0).transpose(0, 1).contiguous();
  const int64_t heads = out.size(1), width = out.size(2);
  const float* own = lse.const_data_ptr<float>() + first * heads;
  const float* other = more_lse.const_data_ptr<float>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, out.scalar_type(), "packed_attention", [&] {
    scalar_t* to = out.data_ptr<scalar_t>() + first * heads * width;
    const scalar_t* from = more.const_data_ptr<scalar_t>();
    at::parallel_for(0, more.size(0) * heads, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float weight = 1.0f / (1.0f + std::exp(own[row] - other[row]));
        for (int64_t i = row * width; i < (row + 1) * width; ++i) {
          const float value = static_cast<float>(to[i]);
          to[i] = static_cast<scalar_t>(value + (static_cast<float>(from[i]) - value) * weight);
        }
      }
    });
  });
}

at::Tensor packed_attention_cpu(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cu_seqlens, int64_t,
    const MaybeTensor& prefixes, const MaybeTensor& constant_k, const MaybeTensor& constant_v) {
  at::Tensor out = at::empty_like(q, at::MemoryFormat::Contiguous);
  const Segments segments(cu_seqlens, prefixes);
  const int32_t* start = segments.start;
  at::Tensor lse = segments.prefix ? at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat)) : at::Tensor();
  auto keep = [&](const Attended& part, int64_t s, int64_t head, int64_t count) {
    rows_of(out, start[s], start[s + 1]).narrow(1, head, count).copy_(std::get<0>(part));
    if (lse.defined()) {
      lse.narrow(0, start[s], start[s + 1] - start[s]).narrow(1, head, count)
          .copy_(std::get<1>(part).squeeze(0).transpose(0, 1));
    }
  };
  const int64_t num_groups = k.size(1), group = q.size(1) / k.size(1);
  if (segments.count < 4 * at::get_num_threads()) {  // few segments: the threads share each one
    for (int64_t s = 0; s < segments.count; ++s) {
      auto rows = [&](const at::Tensor& x) { return rows_of(x, start[s], start[s + 1]); };
      keep(attend(rows(q), rows(k), rows(v), true), s, 0, q.size(1));
    }
  } else {
    // Many: each thread takes whole ones, with no barrier between them. Segments run fastest, so that every
    // thread gets its share of long and short ones however the lengths are ordered.
    at::parallel_for(0, num_groups * segments.count, 1, [&](int64_t begin, int64_t end) {
      at::AutoDispatchBelowADInplaceOrView below;  // a pool thread does not know that this is inference
      for (int64_t item = begin; item < end; ++item) {
        const int64_t g = item / segments.count, s = item % segments.count;
        auto heads = [&](const at::Tensor& x, int64_t count) {
          return rows_of(x, start[s], start[s + 1]).narrow(1, g * count, count);
        };
        keep(attend(heads(q, group), heads(k, 1), heads(v, 1), true), s, g * group, group);
      }
    });
  }
  // Neighbours with one prefix attend to it in one piece: the samples of a request.
  for (int64_t s = 0, end = 0; s < segments.count; s = end) {
    for (end = s + 1; end < segments.count && segments.same_prefix(s, end);) {
      ++end;
    }
    if (segments.has_prefix(s)) {
      join(out, lse, start[s],
           attend(rows_of(q, start[s], start[end]), segments.prefix_rows(s, k, constant_k),
                  segments.prefix_rows(s, v, constant_v), false));
    }
  }
  return out;
}

// float32 and odd head widths: what the flash kernel does not take. Waits for the device; not for serving.
at::Tensor packed_attention_by_segment(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cu_seqlens,
    const MaybeTensor& prefixes, const MaybeTensor& constant_k, const MaybeTensor& constant_v) {
  at::Tensor out = at::empty_like(q, at::MemoryFormat::Contiguous);
  const at::Tensor borders = cu_seqlens.cpu();
  const MaybeTensor before = prefixes ? MaybeTensor(prefixes->cpu()) : MaybeTensor();
  const Segments segments(borders, before);
  for (int64_t s = 0; s < segments.count; ++s) {
    auto rows = [&](const at::Tensor& x) { return rows_of(x, segments.start[s], segments.start[s + 1]); };
    auto all = [&](const at::Tensor& x, const MaybeTensor& constant) {
      return segments.has_prefix(s) ? at::cat({segments.prefix_rows(s, x, constant), rows(x)}, 2) : rows(x);
    };
    const at::Tensor query = rows(q), key = all(k, constant_k);
    const at::Tensor visible =
        at::ones({query.size(2), key.size(2)}, q.options().dtype(at::kBool)).tril(key.size(2) - query.size(2));
    rows(out).copy_(at::scaled_dot_product_attention(
        query, key, all(v, constant_v), visible, 0.0, /*is_causal=*/false, std::nullopt, /*enable_gqa=*/true));
  }
  return out;
}

// Nothing here waits for the device. A segment's prefix is where its keys begin and how many they are; one
// without any gets an infinite log-sum-exp from the flash kernel, and no weight.
at::Tensor packed_attention_cuda(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cu_seqlens,
    int64_t max_seqlen, const MaybeTensor& prefixes, const MaybeTensor& constant_k,
    const MaybeTensor& constant_v) {
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  if (!half || q.size(2) % 8 != 0 || q.size(2) > 256) {
    return packed_attention_by_segment(q, k, v, cu_seqlens, prefixes, constant_k, constant_v);
  }
  auto result = at::_flash_attention_forward(
      q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, 0.0, /*is_causal=*/true,
      /*return_debug_mask=*/false);
  at::Tensor out = std::get<0>(result), lse = std::get<1>(result);  // lse float[H, T]
  const int64_t count = cu_seqlens.numel() - 1;
  if (!prefixes || prefixes->size(0) != count) {
    return out;
  }
  auto join_part = [&](const at::Tensor& key, const at::Tensor& value, const at::Tensor& first,
                       const at::Tensor& length, int64_t longest) {
    const at::Tensor starts = at::cat({first, first.narrow(0, 0, 1)});  // the kernel reads one more than segments
    auto part = at::_flash_attention_forward(
        q, key, value, cu_seqlens, starts, max_seqlen, longest, 0.0, /*is_causal=*/false,
        /*return_debug_mask=*/false, std::nullopt, std::nullopt, std::nullopt, length);
    const at::Tensor more = std::get<1>(part);
    TORCH_CHECK(more.dim() == 2 && more.size(1) == q.size(0), "flash attention's log-sum-exp has another layout");
    const at::Tensor other = at::where(more.isinf(), -INFINITY, more);
    const at::Tensor weight = other.sub(lse).sigmoid().transpose(0, 1).unsqueeze(-1);
    out = out.to(at::kFloat).lerp(std::get<0>(part).to(at::kFloat), weight).to(q.scalar_type());
    lse = at::logaddexp(lse, other);
  };
  const at::Tensor parent = prefixes->select(1, 0), known = parent.clamp_min(0).to(at::kLong);
  const at::Tensor first = cu_seqlens.index_select(0, known), stop = cu_seqlens.index_select(0, known.add(1));
  join_part(k, v, first, stop.sub(first).mul(parent.ge(0)).to(at::kInt), max_seqlen);
  if (constant_k && constant_v) {
    join_part(*constant_k, *constant_v, at::zeros_like(first), prefixes->select(1, 1).contiguous(), constant_k->size(0));
  }
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(boundgen, CPU, m) { m.impl("packed_attention", packed_attention_cpu); }
TORCH_LIBRARY_IMPL(boundgen, CUDA, m) { m.impl("packed_attention", packed_attention_cuda); }
