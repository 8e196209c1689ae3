"""OpenMM's OpenCL platform: argon atoms on a grid, their energy before and after a hundred steps, beside the reference platform's."""

import openmm
from openmm import unit

SIDE = 6


def energies(name):
    system, force, positions = openmm.System(), openmm.NonbondedForce(), []
    for i in range(SIDE**3):
        system.addParticle(39.9)
        force.addParticle(0.0, 0.34, 0.996)
        positions.append(openmm.Vec3(i % SIDE, i // SIDE % SIDE, i // SIDE**2) * 0.4)
    system.addForce(force)
    integrator = openmm.VerletIntegrator(0.001)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName(name))
    context.setPositions(positions)
    found = []
    for steps in (0, 100):
        integrator.step(steps)
        state = context.getState(getEnergy=True)
        found.append(state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole))
    return found


reference, found = energies("Reference"), energies("OpenCL")
print("energies", [round(energy, 1) for energy in found])
print("as the reference", all(abs(a - b) < 0.5 for a, b in zip(reference, found)))
