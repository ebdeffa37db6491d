// The softmax of the head, folded like RMSNorm's r: what programs/probabilities.cu and head.cu
// agree on.
//
// With z = r x W'^T, the probabilities p of a row are exp(z - lse). The program stores
//     P = exp(z - c)     with a row's c known before: z_t + ln 2^AIM, z_t its target's logit
// and 0 in the target's column, and leaves the row's sums
//     S = sum P          A = sum P log2(P)
// of the unrounded values. lse is known once all columns are, and so what is left is row scales:
//     exp(lse - c) = S + 2^-AIM             loss = lse - z_t = log(1 + S 2^AIM)
//     dlogits' = u P                        u = scale r / (S + 2^-AIM)
//     s = sum dlogits' z = u ln2 (A + AIM S)
// In the target's column p - 1 is exactly -S / (S + 2^-AIM), so -S takes the place of the 0 there:
// nothing cancels where p is near 1. c moves with the row, so neither large logits nor a mean
// that drifts matter: a row's P goes out of range only where its loss does. S up to 2^MOST, a loss
// of 106 nats, keeps u and its products in range; above the loss is NaN, and the update is skipped.
// Probabilities below 2^(-126 + AIM) of the target's become 0.
#pragma once

enum { HEAD_AIM = 64, HEAD_MOST = 90 };

// What a row's aim has beside its target's column: the exponent of 2 that P starts from.
enum { AIM_EXPONENT, AIM_TARGET, AIM_PARTS };
