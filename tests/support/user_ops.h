// Ops that a user might bring, through the public header alone: what tests of users' ops register.
#pragma once

#include "shardrun/op.h"

namespace shardrun::test {

/// acme::Swish        element-wise, attribute beta, gradient as a kernel
/// acme::Affine       x [.., k] times w [k, n] plus b [n], gradient as another op
/// acme::Affine_grad   that op
/// acme::RowMax       largest of each row; its gradient looks where x equals the result
/// acme::Lookup       rows of a table by position, an operand that indexes
/// acme::Clamp10      the identity between -10 and 10: linear wherever numbers are small
/// acme::Halves       swaps the halves of the last dim, which must be even; computes in double only
/// acme::Sign         no gradient
std::vector<UserOp> user_ops();

}  // namespace shardrun::test
