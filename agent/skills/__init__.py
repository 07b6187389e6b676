"""Skills: folders of instructions that the operator writes, in the form of agentskills.io."""
