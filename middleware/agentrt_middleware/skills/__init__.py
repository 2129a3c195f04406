"""Skills: folders of instructions that a model may use, once the user agrees to each."""
