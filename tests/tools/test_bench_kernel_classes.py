"""Kernels by name: ours as csrc/ and engine/ops/portable have them, cuBLAS's, PyTorch's, Inductor's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch.profiler import DeviceType

from tools.bench.card import device_times
from tools.bench.kernel_classes import CLASSES, classify, shares

NAMES = {
    "gemm": (
        "void boundgen::chain_kernel<128, 256, 128, 128, boundgen::E4m3>(boundgen::ChainParams<128, 256>)",
        "void boundgen::gemm_kernel<boundgen::E4m3, 256, boundgen::Qkv<256, 128> >(boundgen::GemmParams)",
        "nvjet_sm90_qqtst_128x256_128x4_2x1_v_bz_coopA_TNT",
        "nvjet_tst_192x192_64x3_1x2_h_bz_coopB_TNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x4_tn_align8>",
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm90<...>>",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16>",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128>",
        "_gate_up_0",
        "triton_tem_fused_mm_3",
        "_linear_int8_2",
        "split_product_kernel",
    ),
    "attention": (
        "void boundgen::attention_kernel<128, __nv_fp8_e4m3>(boundgen::AttentionParams)",
        "_varlen_attention",
        "_varlen_attention_1",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64>>",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>::Params)",
    ),
    "norm": (
        "_add_rms_norm_0",
        "_head_norm_rope",
        "add_parts_norm_kernel",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2",
        "triton_per_fused__to_copy_mean_mul_pow_rsqrt_0",
    ),
    "select": (
        "boundgen::rows_kernel(boundgen::RowsCall)",
        "triton_poi_fused_embedding_0",
        "triton_poi_fused_clamp_min_index_select_sub_4",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long)",
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<...>>",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>",
        "void cub::DeviceRadixSortOnesweepKernel<...>",
        "exact_logits",
        "corrected_keys",
        "rescored",
    ),
    "copy": (
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(...)>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>",
        "triton_poi_fused__to_copy_1",
        "triton_poi_fused_cat_7",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<...>",
    ),
    "other": (
        "boundgen::plan_kernel(boundgen::PlanCall)",
        "_attention_tiles",
        "_silu_mul_0",
        "_quantise_rows",
        "triton_poi_fused_mul_silu_3",
        "something_unheard_of",
    ),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_names(kind: str, name: str) -> None:
    assert classify(name) == kind


def test_only_what_ran_on_the_device_counts() -> None:
    def event(key: str, device: DeviceType, us: float) -> SimpleNamespace:
        return SimpleNamespace(key=key, device_type=device, self_device_time_total=us)

    events = [
        event("cudaGraphLaunch", DeviceType.CPU, 0.0),
        event("aten::mm", DeviceType.CPU, 40.0),
        event("nvjet_tst", DeviceType.CUDA, 30.0),
        event("nvjet_tst", DeviceType.CUDA, 10.0),
        event("Memset (Device)", DeviceType.CUDA, 5.0),
        event("nothing", DeviceType.CUDA, 0.0),
    ]
    assert device_times(events, 5) == {"nvjet_tst": 8.0, "Memset (Device)": 1.0}


def test_shares_add_up() -> None:
    found = shares({"_gate_up": 60.0, "nvjet_tst": 20.0, "_varlen_attention": 20.0})
    assert tuple(found) == CLASSES
    assert set(NAMES) == set(CLASSES)
    assert found["gemm"] == pytest.approx(0.8)
    assert sum(found.values()) == pytest.approx(1)
    assert shares({}) == {}
