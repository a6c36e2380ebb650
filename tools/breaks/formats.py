"""Weights of 8 and 4 bits as compressed-tensors and ModelOpt store them."""
from mistake import Break

TOPICS = {
    "INT4": "codes of INT4 in words, scales of groups",
    "NVFP4": "e2m1 codes, e4m3 scales, a global scale",
    "MXFP4": "e2m1 codes and powers of two",
    "FP8": "a scale for each row, or one for the tensor",
    "ignored": "patterns for the names of modules that are not quantized",
}

PRODUCTS = "Formats/QuantizedProducts.EqualFloat64ButForRoundingInEveryTable/"

BREAKS = (
    Break("ignored", "a pattern ends with its first star", "checkpoint/quantization.cc",
          "module.starts_with(pattern.substr(0, star)) && Matches(ParseGlob(pattern), module)",
          "module.starts_with(pattern.substr(0, star))", "checkpoint_test", "QuantizationTest.NamesOfModules"),
    Break("ignored", "a pattern to the end matches the beginning", "checkpoint/quantization.cc",
          "!pattern.to_end || ends.back() == name.size()", "!ends.empty()",
          "checkpoint_test", "QuantizationTest.NamesOfModules"),
    Break("INT4", "the even column is in the upper half of a byte", "kernels/packed_matrix.cc",
          "codes[n * bytes + i / 2] >> i % 2 * 4 & 15U", "codes[n * bytes + i / 2] >> (i + 1) % 2 * 4 & 15U",
          "networks_test", PRODUCTS + "int4"),
    Break("INT4", "codes are read as signed ones", "kernels/cpu/avx2/four_bit_leaves.cc",
          "_mm256_sub_epi32(code, _mm256_set1_epi32(8))",
          "_mm256_sub_epi32(_mm256_xor_si256(code, _mm256_set1_epi32(8)), _mm256_set1_epi32(8))",
          "networks_test", PRODUCTS + "int4"),
    Break("INT4", "groups of 64 columns are read as groups of 32", "checkpoint/stored_four_bit_tensor.cc",
          "const int64_t times = group_.stored_cols / group_.cols;", "const int64_t times = 1;",
          "networks_test", PRODUCTS + "int4_of_64"),
    Break("NVFP4", "the global scale is dropped", "checkpoint/quantized_tensors.cc",
          "  return global;\n", "  return 1;\n", "networks_test", PRODUCTS + "nvfp4"),
    Break("NVFP4", "a global scale that divides is multiplied", "checkpoint/quantized_tensors.cc",
          "parts.divides_by_global ? 1 / scale : scale", "scale", "networks_test", PRODUCTS + "nvfp4"),
    Break("NVFP4", "matrices below one another share the first one's global scale",
          "ops/cpu/cpu_weight_loader.cc", "RowScale(*p.open[tensor_of(r)], row_of(r))",
          "RowScale(*p.open[0], row_of(r))", "networks_test", PRODUCTS + "nvfp4*"),
    Break("MXFP4", "the scales of rows are those of the row before", "kernels/packed_matrix.cc",
          "group_scales + (n * groups + g) * size", "group_scales + (std::max<int64_t>(0, n - 1) * groups + g) * size",
          "networks_test", PRODUCTS + "mxfp4"),
    Break("FP8", "scales of rows lie the other way round", "ops/cpu/weight_format.cc",
          "scales->values[static_cast<size_t>(row / scales->block_rows)]",
          "scales->values[scales->values.size() - 1 - static_cast<size_t>(row / scales->block_rows)]",
          "networks_test", PRODUCTS + "fp8_row"),
    Break("FP8", "scales of rows are applied to columns", "checkpoint/stored_tensor.cc",
          "const float* scale = scales_.values.data() + row / scales_.block_rows * scales_per_row;",
          "const float* scale = scales_.values.data() + (scales_.block_rows == 1 ? 0 : row / "
          "scales_.block_rows * scales_per_row);", "checkpoint_test", "QuantizedTensorsTest.*"),
)
