/** Runs an action at most once per interval, and once after the last call. */
export class Throttle {
  #timer: ReturnType<typeof setTimeout> | null = null;

  constructor(
    readonly interval: number,
    readonly action: () => void,
  ) {}

  run(): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.action();
    }, this.interval);
  }

  stop(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
  }
}
