// Tensor contents: what the numbers of an initialiser say of its role.
#pragma once

#include <optional>
#include <vector>

#include "graph/onnx/file/model_file.h"

namespace shardrun::importer {

/// Is every element the same, bit for bit?
bool is_uniform(const StoredTensor& tensor);

/// Are there at most two different elements? So are the biases of a fresh LSTM: ones for what is
/// forgotten, else zeros.
bool has_two_values(const StoredTensor& tensor);

/// The same elements of the same type in order, whatever the shapes?
bool equal_contents(const StoredTensor& a, const StoredTensor& b);

/// Of some numbers of a matrix's diagonal, which its transpose has, too.
uint64_t diagonal_hash(const StoredTensor& tensor);

/// b == transpose(a), both matrices.
bool transposed_contents(const StoredTensor& a, const StoredTensor& b);

/// Of a table, the one row of zeros among its first ones and its last, where an embedding begins
/// with its padding_idx. Nothing if there is none, or more.
std::optional<int64_t> row_of_zeros(const StoredTensor& table);

/// Has it an infinity among its first numbers, as a mask that is added has?
bool has_infinity(const StoredTensor& tensor);

/// Sines or cosines of positions, which no exporter tells from a weight that learns ([T, D], any
/// dims of 1). Either all is within [-1, 1], and the first angle 0, then 1 (rotary and sinusoidal
/// embeddings); or each row holds sines with their cosines, and one row those of 0 (places in an
/// image). Rows of zeros are those of a padding or a class.
bool is_sinusoid(const StoredTensor& tensor);

/// A Hamming window as the operator HammingWindow defines it, 25/46 - 21/46 cos, along one dim:
/// periodic or not, between zeros, and the same for every index of the other dims. Of 16-bit
/// numbers it says no.
bool is_hamming_window(const StoredTensor& tensor);

/// Are more than a tenth of the numbers there already, or more numbers twice than chance has it?
/// Then the tensor is a table's rows repeated rather than a part of it. Of 16-bit numbers too few
/// exist to say.
bool repeats_itself(const StoredTensor& tensor);

/// Do parts of one tensor overlap? By their numbers: more than chance repeats are in two of them.
/// Nothing shows of a part of equal numbers. Of 16-bit numbers, of which few exist, four in a row
/// have to be the same.
bool have_common_numbers(const std::vector<const StoredTensor*>& parts);

/// Has every row along dim 0 a mean of 0 and a variance of 1? So has what was made of a weight by a
/// normalisation (weight standardisation), and nothing that training begins with.
bool is_normalised(const StoredTensor& tensor);

}  // namespace shardrun::importer
