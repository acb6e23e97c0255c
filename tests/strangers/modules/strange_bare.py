"""A device whose module has nothing but what torch itself demands of it."""

import strange


class Module:
    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass


strange.register("bare", Module())
