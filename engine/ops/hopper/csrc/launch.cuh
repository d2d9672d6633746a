// Host side: tensor maps and launches. Errors are returned as cudaError_t values, or as one of the codes below.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

namespace boundgen {

constexpr int kErrorNoVariant = 9000;    // the library holds no kernel of this element type, tile width or head size
constexpr int kErrorNoEncoder = 9001;    // the driver offers no cuTensorMapEncodeTiled
constexpr int kErrorTensorMap = 9100;    // plus the CUresult of the encoder

using Encoder = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                             const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

inline Encoder find_encoder() {
  cudaDriverEntryPointQueryResult found;
  void* f = nullptr;
  const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found);
  return e == cudaSuccess ? reinterpret_cast<Encoder>(f) : nullptr;
}

// A row-major matrix of bytes, read in boxes of 128 bytes by `box_rows` rows, swizzled for wgmma. Reads past either edge give zeros:
// that is what makes ragged row counts, widths and depths correct without a branch in the main loop.
inline int encode_map(CUtensorMap* map, const void* data, int rows, int row_bytes, int box_rows) {
  static const Encoder encode = find_encoder();
  if (!encode) return kErrorNoEncoder;
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(rows)}, strides[1] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[2] = {128, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  const CUresult r = encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return r == CUDA_SUCCESS ? 0 : kErrorTensorMap + static_cast<int>(r);
}

struct Attributes {
  cudaLaunchAttribute list[2];
  int count = 0;
  void cluster(int size) {
    list[count].id = cudaLaunchAttributeClusterDimension;
    list[count].val.clusterDim.x = size;
    list[count].val.clusterDim.y = list[count].val.clusterDim.z = 1;
    count++;
  }
  void dependent() {
    list[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    list[count].val.programmaticStreamSerializationAllowed = 1;
    count++;
  }
};

}  // namespace boundgen
