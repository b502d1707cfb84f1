from agentos.demo.story import main

raise SystemExit(main())
