"""The ops in torch's autocast lists for all devices (ATen/autocast_mode.h), and some ops that are in none of the lists.

A descriptor declares the ops for which a device differs from these lists. tests/autocast/test_lists.py compares this
module with torch's header.
"""

from __future__ import annotations

from typing import Final

_TEXT: Final = {
    # Run in the dtype of the region.
    "lower": """
        _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
        conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv
        linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell
        rnn_relu_cell scaled_dot_product_attention
    """,
    # Run in float32.
    "float32": """
        acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
        pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm
        frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
        cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss
        mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
        multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
        _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
        _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa
        upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa norm.Scalar norm.ScalarOpt_dim
    """,
    # Run in float32 unless the call asks for a dtype.
    "float32_by_default": """
        prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
        linalg_matrix_norm.str_ord sum sum.dim_IntList
    """,
    # Run in the widest dtype of their operands.
    "promote": """
        addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add cat stack
    """,
    # Raise an error that says what to call instead.
    "refused": """
        binary_cross_entropy
    """,
    # In none of the lists: run in the dtype of their operands.
    "unlisted": """
        abs add.Tensor amax asinh atan avg_pool2d batch_norm ceil clamp clone cos div.Tensor dropout elu
        embedding erf eq.Tensor flip floor fmax fmin gather ge.Tensor gelu glu hardsigmoid hardswish hardtanh index_select
        leaky_relu lerp.Tensor logaddexp lt.Tensor max max_pool2d maximum mean min minimum mul.Tensor ne.Tensor neg relu
        roll round rsub.Tensor sigmoid sign silu sin sort sqrt sub.Tensor tanh topk tril trunc var where.self
    """,
}
#: The ops of each list, by their names in torch.ops.aten.
LISTS: Final = {policy: tuple(text.split()) for policy, text in _TEXT.items()}
POLICY: Final = {op: policy for policy, ops in LISTS.items() for op in ops}

#: Ops in torch's lists that are not checked, with the reason: those without a kernel that the CPU or every device has.
LEFT_OUT: Final = {
    "_thnn_fused_lstm_cell": "a fused kernel that only CUDA has (ATen/native/RNN.cpp)",
    "_thnn_fused_gru_cell": "a fused kernel that only CUDA has (ATen/native/RNN.cpp)",
    "_scaled_dot_product_flash_attention": "a kernel of CUDA that scaled_dot_product_attention may choose",
}
