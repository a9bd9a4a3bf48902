"""ScienceWorld: experiments of elementary science in a text world, simulated by a Java process."""
