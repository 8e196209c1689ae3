"""Items with transformers: small models of many kinds, with random weights, that generate or are trained."""

from said import item, near, need, run, same

torch = need("torch")
transformers = need("transformers")

STEPS = 12
TOKENS = 24
WIDTH = 256
WORDS = 1000


def seeded():
    """The same weights and inputs on every way."""
    torch.manual_seed(20)
    torch.backends.cuda.matmul.allow_tf32 = False


def words(*shape):
    """Ids of tokens on the GPU, int64, of this shape."""
    count = 1
    for length in shape:
        count *= length
    return (torch.arange(count, device="cuda") * 37 % (WORDS - 10) + 5).reshape(shape)


def on_gpu(kind, config):
    """A model of this class with random weights on the GPU."""
    seeded()
    return kind(config).cuda()


def generates(kind, config, prompt):
    """Says the tokens that a model chooses, twice: the second time its kernels are loaded."""
    model = on_gpu(kind, config).eval()
    for turn in range(2):
        limits = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
        chosen = model.generate(**prompt, **limits)
        same(f"tokens{turn}", chosen.cpu().numpy())


def learns(kind, config, batch):
    """Says the losses of some steps of training."""
    model = on_gpu(kind, config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        near(f"loss{step}", loss.item(), 1e-2)


def sizes(config, **further):
    """A small configuration of the encoders' usual form."""
    few = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return config(**few, intermediate_size=2 * WIDTH, **still, **further)


@item
def gpt2():
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=WIDTH, n_layer=4, n_head=4, **still)
    generates(transformers.GPT2LMHeadModel, config, {"input_ids": words(2, 16)})
    learns(transformers.GPT2LMHeadModel, config, {"input_ids": words(4, 64), "labels": words(4, 64)})


def llama_config(**further):
    few = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 4}
    return {**few, "num_attention_heads": 4, "num_key_value_heads": 2, **further}


@item
def llama():
    config = transformers.LlamaConfig(**llama_config())
    generates(transformers.LlamaForCausalLM, config, {"input_ids": words(2, 16)})


@item
def mistral():
    config = transformers.MistralConfig(**llama_config(sliding_window=32))
    generates(transformers.MistralForCausalLM, config, {"input_ids": words(2, 48)})


@item
def qwen2():
    config = transformers.Qwen2Config(**llama_config())
    learns(transformers.Qwen2ForCausalLM, config, {"input_ids": words(4, 64), "labels": words(4, 64)})


@item
def mixtral():
    config = transformers.MixtralConfig(**llama_config(num_local_experts=4))
    generates(transformers.MixtralForCausalLM, config, {"input_ids": words(2, 16)})


@item
def bert():
    batch = {"input_ids": words(8, 64), "labels": words(8, 64)}
    learns(transformers.BertForMaskedLM, sizes(transformers.BertConfig), batch)


@item
def roberta():
    config = sizes(transformers.RobertaConfig, num_labels=3)
    batch = {"input_ids": words(8, 64), "labels": torch.arange(8, device="cuda") % 3}
    learns(transformers.RobertaForSequenceClassification, config, batch)


@item
def electra():
    config = sizes(transformers.ElectraConfig, embedding_size=128, num_labels=3)
    batch = {"input_ids": words(8, 64), "labels": torch.arange(8, device="cuda") % 3}
    learns(transformers.ElectraForSequenceClassification, config, batch)


@item
def t5():
    few = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 64, "d_ff": 2 * WIDTH, "num_layers": 3, "num_heads": 4}
    config = transformers.T5Config(**few, dropout_rate=0.0, decoder_start_token_id=0)
    generates(transformers.T5ForConditionalGeneration, config, {"input_ids": words(2, 24)})


@item
def bart():
    layers = {"encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    widths = {"d_model": WIDTH, "encoder_ffn_dim": 2 * WIDTH, "decoder_ffn_dim": 2 * WIDTH}
    config = transformers.BartConfig(vocab_size=WORDS, dropout=0.0, **layers, **widths)
    learns(transformers.BartForConditionalGeneration, config, {"input_ids": words(4, 32), "labels": words(4, 32)})


@item
def vit():
    few = {"hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 2 * WIDTH}
    config = transformers.ViTConfig(**few, image_size=64, patch_size=8, num_labels=5)
    seeded()
    batch = {"pixel_values": torch.rand(8, 3, 64, 64).cuda(), "labels": torch.arange(8, device="cuda") % 5}
    learns(transformers.ViTForImageClassification, config, batch)


@item
def resnet():
    config = transformers.ResNetConfig(embedding_size=32, hidden_sizes=[32, 64], depths=[2, 2], num_labels=5)
    seeded()
    batch = {"pixel_values": torch.rand(8, 3, 64, 64).cuda(), "labels": torch.arange(8, device="cuda") % 5}
    learns(transformers.ResNetForImageClassification, config, batch)


@item
def convnext():
    config = transformers.ConvNextConfig(hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 2, 1], num_labels=5)
    seeded()
    batch = {"pixel_values": torch.rand(8, 3, 64, 64).cuda(), "labels": torch.arange(8, device="cuda") % 5}
    learns(transformers.ConvNextForImageClassification, config, batch)


@item
def whisper():
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    widths = {"d_model": WIDTH, "encoder_ffn_dim": 2 * WIDTH, "decoder_ffn_dim": 2 * WIDTH, "dropout": 0.0}
    ids = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    config = transformers.WhisperConfig(**layers, **widths, **ids, suppress_tokens=[], begin_suppress_tokens=[])
    seeded()
    batch = {"input_features": torch.rand(2, 80, 3000).cuda(), "labels": words(2, 32)}
    learns(transformers.WhisperForConditionalGeneration, config, batch)


if __name__ == "__main__":
    run()
