// The entry points of the fused GEMMs. ELEMENT (E4m3, Bf16 or Int8) is set by the compiler, one object a type.
#include "epilogue_gate_up.cuh"
#include "epilogue_qkv.cuh"
#include "epilogue_residual.cuh"

using namespace boundgen;
using Elem = ELEMENT;
#define NAME2(a, b) a##_##b
#define NAME1(a, b) NAME2(a, b)
#define ENTRY(name) extern "C" __attribute__((visibility("default"))) int NAME1(name, ELEMENT)

// Outputs of 8 bits are of the type that is multiplied, or of either after bf16. Two more for layers that mix both: an e4m3 product of the
// residual reads what an int8 one left, and an int8 down what an e4m3 gate_up left.
template <class Multiplied, class Out, int BN> static int residual(const GemmCall& c, const ResidualParams& p) {
  return launch_gemm<Multiplied, BN, Residual<BN, Multiplied, Out>>(c, p);
}
template <class Out> static int residual(const GemmCall& c, const ResidualParams& p) {
  if constexpr (Elem::kGrouped) {
    if (p.block_scales && c.tile == 256) return residual<Elem::Down, Out, 256>(c, p);
    if (p.block_scales && c.tile == 192) return residual<Elem::Down, Out, 192>(c, p);
    if (p.block_scales && c.tile == 128) return residual<Elem::Down, Out, 128>(c, p);
    if (p.block_scales) return kErrorNoVariant;
  }
  if (c.tile == 256) return residual<Elem, Out, 256>(c, p);
  if (c.tile == 192) return residual<Elem, Out, 192>(c, p);
  if (c.tile == 128) return residual<Elem, Out, 128>(c, p);
  return kErrorNoVariant;
}
ENTRY(residual)(const GemmCall* c, const ResidualParams* p) {
  if constexpr (Elem::kBytes == 2)
    if (c->output == Int8::kCode) return residual<Int8>(*c, *p);
  if constexpr (Elem::kGrouped)
    if (c->output == E4m3::kCode) return residual<E4m3>(*c, *p);
  return residual<Elem::Narrow>(*c, *p);
}

template <class Out> static int gate_up(const GemmCall& c, const GateUpParams& p) {
  if (c.tile == 256) return launch_gemm<Elem, 256, GateUp<256, Elem, Out>>(c, p);
  if constexpr (!Out::kGrouped)
    if (c.tile == 128) return launch_gemm<Elem, 128, GateUp<128, Elem, Out>>(c, p);
  return kErrorNoVariant;
}
ENTRY(gate_up)(const GemmCall* c, const GateUpParams* p) {
  if (c->output == Bf16::kCode) return gate_up<Bf16>(*c, *p);
  if constexpr (!Elem::kGrouped)
    if (c->output == E4m3::kCode) return gate_up<E4m3>(*c, *p);
  return c->output == Int8::kCode ? gate_up<Int8>(*c, *p) : kErrorNoVariant;
}

template <int BN, int D> static int qkv(const GemmCall& c, const QkvParams& p) { return launch_gemm<Elem, BN, Qkv<BN, D, Elem>>(c, p); }
ENTRY(qkv)(const GemmCall* c, const QkvParams* p, int head_dim) {
  if (head_dim == 128 && c->tile == 256) return qkv<256, 128>(*c, *p);
  if (head_dim == 128 && c->tile == 128) return qkv<128, 128>(*c, *p);
  if (head_dim == 64 && c->tile == 256) return qkv<256, 64>(*c, *p);
  if (head_dim == 64 && c->tile == 192) return qkv<192, 64>(*c, *p);
  if (head_dim == 64 && c->tile == 128) return qkv<128, 64>(*c, *p);
  return kErrorNoVariant;
}
