"""Items of programs that bring kernels of their own: OpenMM and onnxruntime."""

import math

from said import absent, item, near, need, run, same, timed


@item
def openmm():
    """OpenMM's CUDA platform: forces, energies and steps of a box of particles, in double precision."""
    openmm = need("openmm")
    from openmm import unit

    names = [openmm.Platform.getPlatform(at).getName() for at in range(openmm.Platform.getNumPlatforms())]
    if "CUDA" not in names:
        absent(f"this OpenMM has no CUDA platform, but {', '.join(names)}")
    side, step = 8, 0.4
    system = openmm.System()
    box = side * step
    system.setDefaultPeriodicBoxVectors((box, 0, 0), (0, box, 0), (0, 0, box))
    force = openmm.NonbondedForce()
    force.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
    force.setCutoffDistance(1.0)
    places = []
    for number in range(side**3):
        x, y, z = number % side, number // side % side, number // side**2
        places.append(openmm.Vec3(x, y, z) * step + openmm.Vec3(0.01 * math.sin(number), 0.01 * math.cos(number), 0))
        system.addParticle(39.9)
        force.addParticle(0.1 if number % 2 else -0.1, 0.34, 0.997)
    system.addForce(force)
    integrator = openmm.VerletIntegrator(0.002)
    properties = {"Precision": "double", "DeterministicForces": "true"}
    platform = openmm.Platform.getPlatformByName("CUDA")
    with timed("first_context"):
        context = openmm.Context(system, integrator, platform, properties)
    context.setPositions(places)

    def energy():
        state = context.getState(getEnergy=True)
        whole = state.getPotentialEnergy() + state.getKineticEnergy()
        return whole.value_in_unit(unit.kilojoule_per_mole)

    before = energy()
    integrator.step(500)
    after = energy()
    same("particles", system.getNumParticles())
    near("before", before, 1e-9)
    near("after", after, 1e-6)
    assert abs(after - before) < 0.01 * abs(before), (before, after)


@item
def onnxruntime():
    """onnxruntime's CUDA provider: a net of two layers, beside the CPU's answer."""
    import numpy as np

    ort = need("onnxruntime")
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        absent(f"this onnxruntime has no CUDA, but {', '.join(ort.get_available_providers())}")
    onnx = need("onnx")
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(5)
    first = random.standard_normal((64, 128)).astype(np.float32)
    second = random.standard_normal((128, 10)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["bent"]),
        helper.make_node("MatMul", ["bent", "second"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"]),
    ]
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", floats, ["rows", 64])],
        [helper.make_tensor_value_info("y", floats, ["rows", 10])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    bytes_of_model = model.SerializeToString()
    session = ort.InferenceSession(bytes_of_model, providers=[("CUDAExecutionProvider", {"use_tf32": 0})])
    # It falls back to the CPU without a word where the provider's libraries cannot be loaded.
    if session.get_providers()[0] != "CUDAExecutionProvider":
        absent("this onnxruntime's CUDA provider cannot be loaded")
    x = random.standard_normal((256, 64)).astype(np.float32)
    with timed("run"):
        (y,) = session.run(None, {"x": x})
    plain = ort.InferenceSession(bytes_of_model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    assert np.allclose(y, plain, atol=1e-4)
    same("shape", y.shape)
    near("sum", float((y * np.arange(10)).sum()), 1e-4)


if __name__ == "__main__":
    run()
